"""`ingot workers`: those that run jobs, and the credentials they come with."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from ingot.cli.asking import Asking, asking, noun
from ingot.cli.completion import job_types
from ingot.cli.output import Column, at, compact
from ingot.cli.teaching import examples
from ingot.identity.credentials import WorkerCredential
from ingot.jobs.crew import Worker
from ingot.wire.admin import WorkerShown

COLUMNS: Final = (
    Column("ID", whole=True),
    Column("STATUS", whole=True),
    Column("TYPES"),
    Column("HOST"),
    Column("VERSION", spare=True),
    Column("SEEN"),
)
CREDENTIAL_COLUMNS: Final = (
    Column("ID", whole=True),
    Column("ENABLED"),
    Column("TYPES"),
    Column("SECRET"),
    Column("CREATED", spare=True),
    Column("LAST USED"),
)
WorkerId = Annotated[str, typer.Argument(metavar="ID", help="The id of a worker.", show_default=False)]
CredentialId = Annotated[str, typer.Argument(metavar="ID", help="The id of a worker credential.", show_default=False)]
Shared = Annotated[bool, typer.Option("--shared", help="Of those that serve all tenants, for an operator.")]

app = noun("Look after workers, and make credentials for them. `ingot worker` runs one.")
credentials = noun("Make and manage what workers come to the server with.")
app.add_typer(credentials, name="credentials")


@app.command("list", epilog=examples("ingot workers list", "ingot workers list --shared --json"))
@asking
def list_workers(ask: Asking, shared: Shared = False) -> None:
    """List workers, and how they stand."""
    ask.out.list(ask.client.workers(shared=shared), COLUMNS, _row)


@app.command(epilog=examples("ingot workers show press-1/host-4711-ab12"))
@asking
def show(ask: Asking, id: WorkerId, shared: Shared = False) -> None:
    """Show a worker."""
    _show(ask, ask.client.worker(id, shared=shared))


@app.command(epilog=examples("ingot workers drain press-1/host-4711-ab12"))
@asking
def drain(ask: Asking, id: WorkerId, shared: Shared = False) -> None:
    """Have a worker take no more work; it finishes what it runs, and ends."""
    _show(ask, ask.client.drain(id, shared=shared))


@app.command(epilog=examples("ingot workers remove press-1/host-4711-ab12"))
@asking
def remove(ask: Asking, id: WorkerId, shared: Shared = False) -> None:
    """Forget a worker. What it holds is given back at once, and counts against nothing."""
    found = ask.client.worker(id, shared=shared)
    ask.client.remove_worker(id, shared=shared)
    ask.out.outcome(found, f"The worker {id} is forgotten; one that still runs registers again.")


def _show(ask: Asking, worker: Worker) -> None:
    ask.out.details(
        worker,
        [
            ("id", worker.id),
            ("status", worker.status),
            ("types", worker.types),
            ("host", worker.hostname),
            ("version", worker.version),
            ("registered", at(worker.registered_at)),
            ("by", worker.registered_by),
            ("seen", at(worker.seen_at)),
            ("metadata", compact(worker.metadata)),
        ],
    )


def _row(worker: Worker) -> tuple[object, ...]:
    return worker.id, worker.status, worker.types, worker.hostname, worker.version, worker.seen_at


# -- credentials --------------------------------------------------------------------------------------------


@credentials.command(
    "create",
    epilog=examples("ingot workers credentials create press-1 --type print > press-1.env", "… create ci --shared"),
)
@asking
def create(
    ask: Asking,
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


@credentials.command("list", epilog=examples("ingot workers credentials list"))
@asking
def list_credentials(ask: Asking, shared: Shared = False) -> None:
    """List worker credentials, without their secrets."""
    ask.out.list(ask.client.admin.worker_credentials(shared=shared), CREDENTIAL_COLUMNS, _credential_row)


@credentials.command(epilog=examples("ingot workers credentials regenerate press-1 > press-1.env"))
@asking
def regenerate(ask: Asking, id: CredentialId) -> None:
    """Give a credential another secret, and write it, this once. What its workers run is given back."""
    _show_secret(ask, ask.client.admin.regenerate_worker(id))


@credentials.command(epilog=examples("ingot workers credentials enable press-1"))
@asking
def enable(ask: Asking, id: CredentialId) -> None:
    """Let the workers of a credential in again."""
    _show_credential(ask, ask.client.admin.enable_worker(id))


@credentials.command(epilog=examples("ingot workers credentials disable press-1"))
@asking
def disable(ask: Asking, id: CredentialId) -> None:
    """Put the workers of a credential out, at once. What they run is given back."""
    _show_credential(ask, ask.client.admin.disable_worker(id))


def _show_secret(ask: Asking, made: WorkerShown) -> None:
    if ask.out.json:
        ask.out.document(made)
        return
    ask.out.text(f"INGOT_WORKER_ID={made.id}\nINGOT_WORKER_SECRET={made.secret}\n")
    ask.out.say("The secret is shown this once: set both where `ingot worker` runs.")


def _show_credential(ask: Asking, credential: WorkerCredential) -> None:
    if ask.out.json:
        ask.out.document(credential)
    else:
        ask.out.table(CREDENTIAL_COLUMNS, [_credential_row(credential)])


def _credential_row(one: WorkerCredential) -> tuple[object, ...]:
    enabled = "yes" if one.enabled else "no"
    return one.id, enabled, one.types or "all", f"…{one.ending}", one.created_at, one.last_used_at or "never"
