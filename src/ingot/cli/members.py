"""`ingot members`: list, invite, change and remove the members of a tenant."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from ingot.cli.context import CommandContext, command_group, server_command
from ingot.cli.help_text import examples_epilog
from ingot.cli.output import Column
from ingot.identity.people import ROLES, Member, Role
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import is_id

COLUMNS: Final = (
    Column("ID", never_truncate=True),
    Column("EMAIL"),
    Column("NAME", optional=True),
    Column("ROLE"),
    Column("GROUPS", optional=True),
    Column("STATE"),
)
MemberID = Annotated[
    str, typer.Argument(metavar="ID", help="ID of the person or of the invitation.", show_default=False)
]
RoleOption = Annotated[
    str, typer.Option("--role", metavar="ROLE", help=f"Role: {', '.join(ROLES)}.", show_default=False)
]

app = command_group("List, invite, change and remove the members of a tenant.")


@app.command("list", epilog=examples_epilog("ingot members list", "ingot members list --tenant acme"))
@server_command
def list_members(context: CommandContext) -> None:
    """List members and invitations, by ID."""
    context.out.list(context.client.admin.members(), COLUMNS, _row)


@app.command(
    epilog=examples_epilog(
        "ingot members invite ada@example.com --role member", "ingot members invite 0198c5a2-… --role admin"
    )
)
@server_command
def invite(
    context: CommandContext,
    person: Annotated[
        str, typer.Argument(metavar="EMAIL|ID", help="Email, or the ID that the page /me shows.", show_default=False)
    ],
    role: RoleOption,
) -> None:
    """Invite a person to a role, or change the role that was given to a member.

    An invitation grants nothing until the person accepts it on the page /me, and expires after 14 days.
    """
    if "@" not in person and not is_id(person):
        raise InvalidInput(
            f"{person[:64]!r} is not an email address and not the ID of a person",
            hint="Use an email such as ada@example.com, or the ID that the page /me shows.",
        )
    target = {"email": person} if "@" in person else {"user": person}
    member = context.client.admin.put_member(_parse_role(role), **target)
    action = f"Invited {person}" if member.invited else f"Changed the role of {person}"
    context.out.outcome(member, f"{action}: {member.role}.")


@app.command(epilog=examples_epilog("ingot members change 0198c5a2-… --role viewer"))
@server_command
def change(context: CommandContext, id: MemberID, role: RoleOption) -> None:
    """Change the role that was given to a member, or that of an invitation."""
    member = context.client.admin.change_member(id, _parse_role(role))
    context.out.outcome(member, f"Changed the role of {member.email or member.id}: {member.role}.")


@app.command(epilog=examples_epilog("ingot members remove 0198c5a2-…"))
@server_command
def remove(context: CommandContext, id: MemberID) -> None:
    """Remove a member with their tokens in the tenant, or revoke an invitation."""
    member = context.client.admin.remove_member(id)
    context.out.outcome(member, f"Removed {member.email or member.id}.")


def _parse_role(text: str) -> Role:
    for role in ROLES:
        if text == role:
            return role
    raise InvalidInput(f"--role must be one of {', '.join(ROLES)}, got {text[:64]!r}")


def _row(member: Member) -> tuple[object, ...]:
    groups = [source.group for source in member.sources if source.group is not None]
    state = "invited" if member.invited else "member"
    return member.id, member.email or member.user, member.name or "", member.role, groups, state
