"""`ingot tenants`: those who share a server, and the limits they live under."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
import typer

from ingot.cli.completion import tenant_limits as limit_names
from ingot.cli.confirm import confirm
from ingot.cli.context import CommandContext, command_group, server_command
from ingot.cli.help_text import examples_epilog
from ingot.cli.output import Column
from ingot.cli.parsing import NONE, parse_limits, parse_pairs, without_none
from ingot.identity.model import Limits, Tenant
from ingot.kernel.errors import InvalidInput

COLUMNS: Final = (
    Column("SLUG", never_truncate=True),
    Column("ID", never_truncate=True),
    Column("WEIGHT", align_right=True),
    Column("TIME ZONE", optional=True),
    Column("LIMITS"),
    Column("GROUPS", optional=True),
)
Slug = Annotated[str, typer.Argument(metavar="SLUG", help="The slug of a tenant.", show_default=False)]
Weight = Annotated[int | None, typer.Option(min=1, metavar="N", help="How large its turns are beside those of others.")]
TimeZone = Annotated[str | None, typer.Option(metavar="NAME", help="Its time zone, as in Europe/Berlin.")]
LimitOption = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=VALUE",
        help=f"A limit: {', '.join(Limits.__struct_fields__)}. `none` takes it away. More than once too.",
        autocompletion=limit_names,
    ),
]
Group = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GROUP=ROLE", help="The role of a group: admin, member, viewer; or `none`. More than once too."
    ),
]

app = command_group("Make tenants, and set their limits; for operators.")


@app.command("list", epilog=examples_epilog("ingot tenants list"))
@server_command
def list_tenants(ask: CommandContext) -> None:
    """List tenants, by slug."""
    ask.out.list(ask.client.admin.tenants(), COLUMNS, _row)


@app.command(epilog=examples_epilog("ingot tenants show acme"))
@server_command
def show(ask: CommandContext, slug: Slug) -> None:
    """Show a tenant."""
    _show(ask, ask.client.admin.tenant(slug))


@app.command(
    epilog=examples_epilog("ingot tenants create acme --weight 2 --limit max_running_jobs=10 --group staff=member"),
)
@server_command
def create(
    ask: CommandContext,
    slug: Slug,
    weight: Weight = None,
    time_zone: TimeZone = None,
    limit: LimitOption = None,
    group: Group = None,
) -> None:
    """Make a tenant."""
    limits = _changed_limits(Limits(), limit or ())
    groups = _changed_groups({}, group or ())
    _show(
        ask,
        ask.client.admin.create_tenant(
            slug, **without_none(weight=weight, time_zone=time_zone), limits=limits, groups=groups
        ),
    )


@app.command(
    epilog=examples_epilog(
        "ingot tenants change acme --limit max_running_jobs=20 --limit rate=none", "… change acme --slug acme2"
    ),
)
@server_command
def change(
    ask: CommandContext,
    slug: Slug,
    weight: Weight = None,
    time_zone: TimeZone = None,
    limit: LimitOption = None,
    group: Group = None,
    new_slug: Annotated[str | None, typer.Option("--slug", metavar="SLUG", help="Another slug.")] = None,
) -> None:
    """Change a tenant; what is not named stays, of limits and groups too."""
    change = without_none(slug=new_slug, weight=weight, time_zone=time_zone)
    if limit or group:
        known = ask.client.admin.tenant(slug)
        if limit:
            change["limits"] = _changed_limits(known.limits, limit)
        if group:
            change["groups"] = _changed_groups(known.groups, group)
    if not change:
        raise InvalidInput("nothing says what to change", hint="Name it, as in --weight 2 or --limit rate=50.")
    _show(ask, ask.client.admin.change_tenant(slug, **change))


@app.command(epilog=examples_epilog("ingot tenants remove acme", "ingot tenants remove acme --yes"))
@server_command
def remove(
    ask: CommandContext, slug: Slug, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False
) -> None:
    """Remove a tenant with all it holds, for good."""
    tenant = ask.client.admin.tenant(slug)
    if not yes:
        counts = ask.open_client(tenant=tenant.slug).summary().counts
        held = ", ".join(f"{count} {status}" for status, count in counts.items() if count) or "none"
        ask.out.message(
            f"The tenant {tenant.slug} ({tenant.id}) has these jobs: {held}. All it holds goes away, for good."
        )
        confirm(f"Remove the tenant {tenant.slug}?")
    removed = ask.client.admin.remove_tenant(slug)
    ask.out.outcome(removed, f"The tenant {removed.slug} is removed; what it held goes away in the background.")


def _show(ask: CommandContext, tenant: Tenant) -> None:
    limits = msgspec.structs.asdict(tenant.limits)
    ask.out.details(
        tenant,
        [
            ("slug", tenant.slug),
            ("id", tenant.id),
            ("weight", tenant.weight),
            ("time zone", tenant.time_zone),
            *(("limit", f"{name} = {_number_text(value)}") for name, value in limits.items() if value is not None),
            *(("group", f"{name} = {role}") for name, role in tenant.groups.items()),
        ],
    )


def _row(tenant: Tenant) -> tuple[object, ...]:
    known = msgspec.structs.asdict(tenant.limits)
    limits = [f"{name}={_number_text(value)}" for name, value in known.items() if value is not None]
    groups = [f"{name}={role}" for name, role in tenant.groups.items()]
    return tenant.slug, tenant.id, tenant.weight, tenant.time_zone, limits, groups


def _number_text(value: float) -> str:
    """A number to its last digit."""
    return str(value) if isinstance(value, int) else f"{value:g}"


def _changed_limits(known: Limits, said: list[str] | tuple[str, ...]) -> Limits:
    """Limits with some of them changed. Raises `InvalidInput`."""
    return msgspec.structs.replace(known, **parse_limits(said, Limits.__struct_fields__))


def _changed_groups(known: dict[str, Any], said: list[str] | tuple[str, ...]) -> dict[str, str]:
    """Groups with some of them changed."""
    changed = {**known, **parse_pairs(said, "--group")}
    return {name: role for name, role in changed.items() if role != NONE}
