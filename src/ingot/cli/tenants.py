"""`ingot tenants`: those who share a server, and the limits they live under."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
import typer

from ingot.cli.asking import Asking, asking, noun
from ingot.cli.completion import limits as limit_names
from ingot.cli.confirm import confirm
from ingot.cli.output import Column
from ingot.cli.teaching import examples
from ingot.cli.values import NONE, given, limits_given, pairs
from ingot.identity.model import Limits, Tenant
from ingot.kernel.errors import InvalidInput

COLUMNS: Final = (
    Column("SLUG", whole=True),
    Column("ID", whole=True),
    Column("WEIGHT", right=True),
    Column("TIME ZONE", spare=True),
    Column("LIMITS"),
    Column("GROUPS", spare=True),
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

app = noun("Make tenants, and set their limits; for operators.")


@app.command("list", epilog=examples("ingot tenants list"))
@asking
def list_tenants(ask: Asking) -> None:
    """List tenants, by slug."""
    ask.out.list(ask.client.admin.tenants(), COLUMNS, _row)


@app.command(epilog=examples("ingot tenants show acme"))
@asking
def show(ask: Asking, slug: Slug) -> None:
    """Show a tenant."""
    _show(ask, ask.client.admin.tenant(slug))


@app.command(
    epilog=examples("ingot tenants create acme --weight 2 --limit max_running_jobs=10 --group staff=member"),
)
@asking
def create(
    ask: Asking,
    slug: Slug,
    weight: Weight = None,
    time_zone: TimeZone = None,
    limit: LimitOption = None,
    group: Group = None,
) -> None:
    """Make a tenant."""
    limits = _limits(Limits(), limit or ())
    groups = _groups({}, group or ())
    _show(
        ask,
        ask.client.admin.create_tenant(slug, **given(weight=weight, time_zone=time_zone), limits=limits, groups=groups),
    )


@app.command(
    epilog=examples(
        "ingot tenants change acme --limit max_running_jobs=20 --limit rate=none", "… change acme --slug acme2"
    ),
)
@asking
def change(
    ask: Asking,
    slug: Slug,
    weight: Weight = None,
    time_zone: TimeZone = None,
    limit: LimitOption = None,
    group: Group = None,
    new_slug: Annotated[str | None, typer.Option("--slug", metavar="SLUG", help="Another slug.")] = None,
) -> None:
    """Change a tenant; what is not named stays, of limits and groups too."""
    change = given(slug=new_slug, weight=weight, time_zone=time_zone)
    if limit or group:
        known = ask.client.admin.tenant(slug)
        if limit:
            change["limits"] = _limits(known.limits, limit)
        if group:
            change["groups"] = _groups(known.groups, group)
    if not change:
        raise InvalidInput("nothing says what to change", hint="Name it, as in --weight 2 or --limit rate=50.")
    _show(ask, ask.client.admin.change_tenant(slug, **change))


@app.command(epilog=examples("ingot tenants remove acme", "ingot tenants remove acme --yes"))
@asking
def remove(
    ask: Asking, slug: Slug, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False
) -> None:
    """Remove a tenant with all it holds, for good."""
    tenant = ask.client.admin.tenant(slug)
    if not yes:
        counts = ask.open(tenant=tenant.slug).summary().counts
        held = ", ".join(f"{count} {status}" for status, count in counts.items() if count) or "none"
        ask.out.say(f"The tenant {tenant.slug} ({tenant.id}) has these jobs: {held}. All it holds goes away, for good.")
        confirm(f"Remove the tenant {tenant.slug}?")
    removed = ask.client.admin.remove_tenant(slug)
    ask.out.outcome(removed, f"The tenant {removed.slug} is removed; what it held goes away in the background.")


def _show(ask: Asking, tenant: Tenant) -> None:
    limits = msgspec.structs.asdict(tenant.limits)
    ask.out.details(
        tenant,
        [
            ("slug", tenant.slug),
            ("id", tenant.id),
            ("weight", tenant.weight),
            ("time zone", tenant.time_zone),
            *(("limit", f"{name} = {_plain(value)}") for name, value in limits.items() if value is not None),
            *(("group", f"{name} = {role}") for name, role in tenant.groups.items()),
        ],
    )


def _row(tenant: Tenant) -> tuple[object, ...]:
    known = msgspec.structs.asdict(tenant.limits)
    limits = [f"{name}={_plain(value)}" for name, value in known.items() if value is not None]
    groups = [f"{name}={role}" for name, role in tenant.groups.items()]
    return tenant.slug, tenant.id, tenant.weight, tenant.time_zone, limits, groups


def _plain(value: float) -> str:
    """A number to its last digit."""
    return str(value) if isinstance(value, int) else f"{value:g}"


def _limits(known: Limits, said: list[str] | tuple[str, ...]) -> Limits:
    """Limits with some of them changed. Raises `InvalidInput`."""
    return msgspec.structs.replace(known, **limits_given(said, Limits.__struct_fields__))


def _groups(known: dict[str, Any], said: list[str] | tuple[str, ...]) -> dict[str, str]:
    """Groups with some of them changed."""
    changed = {**known, **pairs(said, "--group")}
    return {name: role for name, role in changed.items() if role != NONE}
