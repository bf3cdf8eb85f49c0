"""`ingot workers`: those that run jobs, and the credentials they come with."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from ingot.cli.completion import job_types
from ingot.cli.context import CommandContext, command_group, server_command
from ingot.cli.help_text import examples_epilog
from ingot.cli.output import Column, full_time, pretty_json
from ingot.identity.credentials import WorkerCredential
from ingot.jobs.worker_model import RegisteredWorker
from ingot.wire.admin import WorkerCredentialWithSecret

COLUMNS: Final = (
    Column("ID", never_truncate=True),
    Column("STATUS", never_truncate=True),
    Column("TYPES"),
    Column("HOST"),
    Column("VERSION", optional=True),
    Column("SEEN"),
)
CREDENTIAL_COLUMNS: Final = (
    Column("ID", never_truncate=True),
    Column("ENABLED"),
    Column("TYPES"),
    Column("SECRET"),
    Column("CREATED", optional=True),
    Column("LAST USED"),
)
WorkerId = Annotated[str, typer.Argument(metavar="ID", help="The id of a worker.", show_default=False)]
CredentialId = Annotated[str, typer.Argument(metavar="ID", help="The id of a worker credential.", show_default=False)]
Shared = Annotated[bool, typer.Option("--shared", help="Of those that serve all tenants, for an operator.")]

app = command_group("Look after workers, and make credentials for them. `ingot worker` runs one.")
credentials = command_group("Make and manage what workers come to the server with.")
app.add_typer(credentials, name="credentials")


@app.command("list", epilog=examples_epilog("ingot workers list", "ingot workers list --shared --json"))
@server_command
def list_workers(ask: CommandContext, shared: Shared = False) -> None:
    """List workers, and how they stand."""
    ask.out.list(ask.client.workers(shared=shared), COLUMNS, _row)


@app.command(epilog=examples_epilog("ingot workers show press-1/host-4711-ab12"))
@server_command
def show(ask: CommandContext, id: WorkerId, shared: Shared = False) -> None:
    """Show a worker."""
    _show(ask, ask.client.worker(id, shared=shared))


@app.command(epilog=examples_epilog("ingot workers drain press-1/host-4711-ab12"))
@server_command
def drain(ask: CommandContext, id: WorkerId, shared: Shared = False) -> None:
    """Have a worker take no more work; it finishes what it runs, and ends."""
    _show(ask, ask.client.drain(id, shared=shared))


@app.command(epilog=examples_epilog("ingot workers remove press-1/host-4711-ab12"))
@server_command
def remove(ask: CommandContext, id: WorkerId, shared: Shared = False) -> None:
    """Forget a worker. What it holds is given back at once, and counts against nothing."""
    found = ask.client.worker(id, shared=shared)
    ask.client.remove_worker(id, shared=shared)
    ask.out.outcome(found, f"The worker {id} is forgotten; one that still runs registers again.")


def _show(ask: CommandContext, worker: RegisteredWorker) -> None:
    ask.out.details(
        worker,
        [
            ("id", worker.id),
            ("status", worker.status),
            ("types", worker.types),
            ("host", worker.hostname),
            ("version", worker.version),
            ("registered", full_time(worker.registered_at)),
            ("by", worker.registered_by),
            ("seen", full_time(worker.seen_at)),
            ("metadata", pretty_json(worker.metadata)),
        ],
    )


def _row(worker: RegisteredWorker) -> tuple[object, ...]:
    return worker.id, worker.status, worker.types, worker.hostname, worker.version, worker.seen_at


# -- credentials --------------------------------------------------------------------------------------------


@credentials.command(
    "create",
    epilog=examples_epilog(
        "ingot workers credentials create press-1 --type print > press-1.env", "… create ci --shared"
    ),
)
@server_command
def create(
    ask: CommandContext,
    id: CredentialId,
    type: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="A type it may run, all unless told; more than once too.",
            autocompletion=job_types,
        ),
    ] = None,
    shared: Annotated[bool, typer.Option("--shared", help="Serve all tenants in turn, for an operator.")] = False,
) -> None:
    """Make a worker credential, and write its secret, this once, as the settings of a worker."""
    _show_secret(ask, ask.client.admin.create_worker(id, types=type or (), shared=shared))


@credentials.command("list", epilog=examples_epilog("ingot workers credentials list"))
@server_command
def list_credentials(ask: CommandContext, shared: Shared = False) -> None:
    """List worker credentials, without their secrets."""
    ask.out.list(ask.client.admin.worker_credentials(shared=shared), CREDENTIAL_COLUMNS, _credential_row)


@credentials.command(epilog=examples_epilog("ingot workers credentials regenerate press-1 > press-1.env"))
@server_command
def regenerate(ask: CommandContext, id: CredentialId) -> None:
    """Give a credential another secret, and write it, this once. What its workers run is given back."""
    _show_secret(ask, ask.client.admin.regenerate_worker(id))


@credentials.command(epilog=examples_epilog("ingot workers credentials enable press-1"))
@server_command
def enable(ask: CommandContext, id: CredentialId) -> None:
    """Let the workers of a credential in again."""
    _show_credential(ask, ask.client.admin.enable_worker(id))


@credentials.command(epilog=examples_epilog("ingot workers credentials disable press-1"))
@server_command
def disable(ask: CommandContext, id: CredentialId) -> None:
    """Put the workers of a credential out, at once. What they run is given back."""
    _show_credential(ask, ask.client.admin.disable_worker(id))


def _show_secret(ask: CommandContext, made: WorkerCredentialWithSecret) -> None:
    if ask.out.json:
        ask.out.json_document(made)
        return
    ask.out.text(f"INGOT_WORKER_ID={made.id}\nINGOT_WORKER_SECRET={made.secret}\n")
    ask.out.message("The secret is shown this once: set both where `ingot worker` runs.")


def _show_credential(ask: CommandContext, credential: WorkerCredential) -> None:
    if ask.out.json:
        ask.out.json_document(credential)
    else:
        ask.out.table(CREDENTIAL_COLUMNS, [_credential_row(credential)])


def _credential_row(one: WorkerCredential) -> tuple[object, ...]:
    enabled = "yes" if one.enabled else "no"
    return one.id, enabled, one.types or "all", f"…{one.ending}", one.created_at, one.last_used_at or "never"
