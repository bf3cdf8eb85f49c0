"""`ingot database`: migrate a PostgreSQL database and manage its roles, as its owner."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import typer

from ingot.cli.context import command_group
from ingot.cli.help_text import examples_epilog
from ingot.cli.output import print_message
from ingot.engines.postgres import grant_app_role, make_worker_role, migrate, revoke_app_role
from ingot.settings import read_database_owner_url

DEFAULT_TENANT: Final = "default"
# Query parameters of a database URL that identify the owner.
OWNER_PARAMETERS: Final = frozenset({"user", "password", "passfile"})
RoleTenantOption = Annotated[
    str, typer.Option("--tenant", metavar="SLUG", help="Tenant of the role. A role has exactly one tenant.")
]

app = command_group(
    "Migrate a PostgreSQL database and manage its roles.\n\nINGOT_DATABASE_OWNER_URL must name the database, and a "
    "role that may create roles and schemas."
)


@app.command("migrate", epilog=examples_epilog("ingot database migrate"))
def migrate_schema() -> None:
    """Migrate the database schema to this version of Ingot.

    It is safe to run this again, or twice at the same time.
    """
    applied = asyncio.run(migrate(read_database_owner_url()))
    count = f"{len(applied)} migration{'' if len(applied) == 1 else 's'}"
    print_message(f"Applied {count}." if applied else "The schema is up to date.")


@app.command(
    "worker-role", epilog=examples_epilog("ingot database worker-role resize_worker --tenant acme > worker.env")
)
def create_worker_role(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="Name of the role.", show_default=False)],
    tenant: RoleTenantOption = DEFAULT_TENANT,
) -> None:
    """Create a role for workers that connect to the database directly, and print their INGOT_DATABASE_URL.

    The password is shown only once. If the role exists already, it gets a new password.
    """
    owner = read_database_owner_url()
    password = asyncio.run(make_worker_role(owner, role, tenant))
    typer.echo(f"INGOT_DATABASE_URL={_url_for_role(owner, role, password)}")
    print_message(f"Role {role} can run workers for tenant {tenant}. Its password is shown only once.")


@app.command("grant-app", epilog=examples_epilog("ingot database grant-app shop --tenant acme"))
def grant_application_role(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="Role of your application.", show_default=False)],
    tenant: RoleTenantOption = DEFAULT_TENANT,
) -> None:
    """Allow a role of your application to enqueue jobs and publish events in its transactions."""
    asyncio.run(grant_app_role(read_database_owner_url(), role, tenant))
    print_message(f"Role {role} can enqueue jobs and publish events for tenant {tenant}.")


@app.command("revoke-app", epilog=examples_epilog("ingot database revoke-app shop"))
def revoke_application_role(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="Role of your application.", show_default=False)],
) -> None:
    """Revoke the permission of a role to enqueue jobs and publish events."""
    asyncio.run(revoke_app_role(read_database_owner_url(), role))
    print_message(f"Role {role} can no longer enqueue jobs or publish events.")


def _url_for_role(url: str, role: str, password: str) -> str:
    """Replace the owner in a database URL by another role."""
    parts = urlsplit(url)
    _, _, host = parts.netloc.rpartition("@")
    query = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name not in OWNER_PARAMETERS])
    return parts._replace(netloc=f"{quote(role, safe='')}:{password}@{host}", query=query).geturl()
