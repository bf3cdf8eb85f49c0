"""`ingot tenants`: manage tenants and their limits."""

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
Slug = Annotated[str, typer.Argument(metavar="SLUG", help="Slug of the tenant.", show_default=False)]
Weight = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Share of worker capacity relative to other tenants.")
]
TimeZone = Annotated[str | None, typer.Option(metavar="NAME", help="Time zone, such as Europe/Berlin.")]
LimitOption = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=VALUE",
        help=f"Limit: {', '.join(Limits.__struct_fields__)}. The value `none` means no limit. Can be repeated.",
        autocompletion=limit_names,
    ),
]
Group = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GROUP=ROLE",
        help="Role of a group: admin, member or viewer. The value `none` means no role. Can be repeated.",
    ),
]

app = command_group("Create, change and remove tenants; for operators.")


@app.command("list", epilog=examples_epilog("ingot tenants list"))
@server_command
def list_tenants(context: CommandContext) -> None:
    """List tenants, ordered by slug."""
    context.out.list(context.client.admin.tenants(), COLUMNS, _row)


@app.command(epilog=examples_epilog("ingot tenants show acme"))
@server_command
def show(context: CommandContext, slug: Slug) -> None:
    """Show a tenant."""
    _show(context, context.client.admin.tenant(slug))


@app.command(
    epilog=examples_epilog("ingot tenants create acme --weight 2 --limit max_running_jobs=10 --group staff=member"),
)
@server_command
def create(
    context: CommandContext,
    slug: Slug,
    weight: Weight = None,
    time_zone: TimeZone = None,
    limit: LimitOption = None,
    group: Group = None,
) -> None:
    """Create a tenant."""
    limits = _changed_limits(Limits(), limit or ())
    groups = _changed_groups({}, group or ())
    _show(
        context,
        context.client.admin.create_tenant(
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
    context: CommandContext,
    slug: Slug,
    weight: Weight = None,
    time_zone: TimeZone = None,
    limit: LimitOption = None,
    group: Group = None,
    new_slug: Annotated[str | None, typer.Option("--slug", metavar="SLUG", help="New slug.")] = None,
) -> None:
    """Change a tenant.

    Values, limits and groups that you do not name stay as they are.
    """
    changes = without_none(slug=new_slug, weight=weight, time_zone=time_zone)
    if limit or group:
        tenant = context.client.admin.tenant(slug)
        if limit:
            changes["limits"] = _changed_limits(tenant.limits, limit)
        if group:
            changes["groups"] = _changed_groups(tenant.groups, group)
    if not changes:
        raise InvalidInput("no changes are given", hint="Use an option such as --weight 2 or --limit rate=50.")
    _show(context, context.client.admin.change_tenant(slug, **changes))


@app.command(epilog=examples_epilog("ingot tenants remove acme", "ingot tenants remove acme --yes"))
@server_command
def remove(
    context: CommandContext,
    slug: Slug,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Permanently remove a tenant with everything it holds, after confirmation."""
    tenant = context.client.admin.tenant(slug)
    if not yes:
        counts = context.open_client(tenant=tenant.slug).summary().counts
        jobs = ", ".join(f"{count} {status}" for status, count in counts.items() if count) or "none"
        context.out.message(
            f"Tenant {tenant.slug} ({tenant.id}) has these jobs: {jobs}. "
            "Everything that it holds will be permanently deleted."
        )
        confirm(f"Remove tenant {tenant.slug}?")
    removed = context.client.admin.remove_tenant(slug)
    context.out.outcome(removed, f"Removed tenant {removed.slug}. Its data is being deleted in the background.")


def _show(context: CommandContext, tenant: Tenant) -> None:
    limits = msgspec.structs.asdict(tenant.limits)
    context.out.details(
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
    limit_values = msgspec.structs.asdict(tenant.limits)
    limits = [f"{name}={_number_text(value)}" for name, value in limit_values.items() if value is not None]
    groups = [f"{name}={role}" for name, role in tenant.groups.items()]
    return tenant.slug, tenant.id, tenant.weight, tenant.time_zone, limits, groups


def _number_text(value: float) -> str:
    """Format an integer with all its digits, and a fraction without trailing zeros."""
    return str(value) if isinstance(value, int) else f"{value:g}"


def _changed_limits(limits: Limits, options: list[str] | tuple[str, ...]) -> Limits:
    """Apply the values of `--limit` to limits. Raises `InvalidInput`."""
    return msgspec.structs.replace(limits, **parse_limits(options, Limits.__struct_fields__))


def _changed_groups(groups: dict[str, Any], options: list[str] | tuple[str, ...]) -> dict[str, str]:
    """Apply the values of `--group` to groups. Raises `InvalidInput`."""
    changed = {**groups, **parse_pairs(options, "--group")}
    return {name: role for name, role in changed.items() if role != NONE}
