"""`ingot database`: a PostgreSQL database, prepared for servers, workers and applications by its owner."""

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
OWNER_PARAMETERS: Final = frozenset({"user", "password", "passfile"})  # What an address may say of the owner, besides.
RoleTenantOption = Annotated[
    str, typer.Option("--tenant", metavar="SLUG", help="The tenant that it is for; one role has one tenant.")
]

app = command_group(
    "Prepare a PostgreSQL database. INGOT_DATABASE_OWNER_URL names it, with a role that may make roles and schemas."
)


@app.command("migrate", epilog=examples_epilog("ingot database migrate"))
def migrate_schema() -> None:
    """Bring the schema to this version. Done again, it does nothing; two at once are fine."""
    made = asyncio.run(migrate(read_database_owner_url()))
    print_message(f"{len(made)} steps were applied." if made else "The schema was up to date.")


@app.command(
    "worker-role", epilog=examples_epilog("ingot database worker-role resize_worker --tenant acme > worker.env")
)
def create_worker_role(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="Its name.", show_default=False)],
    tenant: RoleTenantOption = DEFAULT_TENANT,
) -> None:
    """Make a role that workers come to the database with, and write the setting for them, this once.

    Of a role that is there the password is changed.
    """
    owner = read_database_owner_url()
    password = asyncio.run(make_worker_role(owner, role, tenant))
    typer.echo(f"INGOT_DATABASE_URL={_url_for_role(owner, role, password)}")
    print_message(f"The role {role} works for {tenant}. Its password is shown this once.")


@app.command("let-in", epilog=examples_epilog("ingot database let-in shop --tenant acme"))
def grant_application_role(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="The role of your application.", show_default=False)],
    tenant: RoleTenantOption = DEFAULT_TENANT,
) -> None:
    """Let a role of yours enqueue jobs and publish events in its own transactions."""
    asyncio.run(grant_app_role(read_database_owner_url(), role, tenant))
    print_message(f"The role {role} enqueues and publishes for {tenant}.")


@app.command("let-out", epilog=examples_epilog("ingot database let-out shop"))
def revoke_application_role(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="The role of your application.", show_default=False)],
) -> None:
    """Let a role of yours enqueue and publish no more."""
    asyncio.run(revoke_app_role(read_database_owner_url(), role))
    print_message(f"The role {role} enqueues and publishes no more.")


def _url_for_role(url: str, role: str, password: str) -> str:
    """The same database for another role."""
    parts = urlsplit(url)
    _, _, host = parts.netloc.rpartition("@")
    query = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name not in OWNER_PARAMETERS])
    return parts._replace(netloc=f"{quote(role, safe='')}:{password}@{host}", query=query).geturl()
