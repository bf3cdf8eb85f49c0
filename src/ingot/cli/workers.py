"""`ingot workers`: manage workers and their credentials."""

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
    Column("PROTOCOL", optional=True),
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
WorkerId = Annotated[str, typer.Argument(metavar="ID", help="Worker ID.", show_default=False)]
CredentialId = Annotated[str, typer.Argument(metavar="ID", help="ID of the credential.", show_default=False)]
SharedOnly = Annotated[bool, typer.Option("--shared", help="Only shared ones, which serve all tenants; for operators.")]
SharedId = Annotated[
    bool,
    typer.Option("--shared", help="The ID is that of a shared worker, which serves all tenants; for operators."),
]

app = command_group("Manage workers and their credentials. To run a worker, use `ingot worker`.")
credentials = command_group("Create, list, replace, enable and disable worker credentials.")
app.add_typer(credentials, name="credentials")


@app.command("list", epilog=examples_epilog("ingot workers list", "ingot workers list --shared --json"))
@server_command
def list_workers(context: CommandContext, shared: SharedOnly = False) -> None:
    """List workers and their status."""
    context.out.list(context.client.workers(shared=shared), COLUMNS, _row)


@app.command(epilog=examples_epilog("ingot workers show press-1/host-4711-ab12"))
@server_command
def show(context: CommandContext, id: WorkerId, shared: SharedId = False) -> None:
    """Show a worker."""
    _show(context, context.client.worker(id, shared=shared))


@app.command(epilog=examples_epilog("ingot workers drain press-1/host-4711-ab12"))
@server_command
def drain(context: CommandContext, id: WorkerId, shared: SharedId = False) -> None:
    """Stop a worker from claiming jobs.

    The worker finishes its running jobs and exits.
    """
    _show(context, context.client.drain(id, shared=shared))


@app.command(epilog=examples_epilog("ingot workers remove press-1/host-4711-ab12"))
@server_command
def remove(context: CommandContext, id: WorkerId, shared: SharedId = False) -> None:
    """Delete a worker from the list and release its jobs.

    The jobs are queued again at once. This does not count as a failure or a crash.
    """
    removed = context.client.worker(id, shared=shared)
    context.client.remove_worker(id, shared=shared)
    context.out.outcome(removed, f"Removed worker {id}. If it is still running, it registers again.")


def _show(context: CommandContext, worker: RegisteredWorker) -> None:
    context.out.details(
        worker,
        [
            ("id", worker.id),
            ("status", worker.status),
            ("types", worker.types),
            ("host", worker.hostname),
            ("version", worker.version),
            ("protocol", worker.protocol),
            ("registered", full_time(worker.registered_at)),
            ("by", worker.registered_by),
            ("seen", full_time(worker.seen_at)),
            ("metadata", pretty_json(worker.metadata)),
        ],
    )


def _row(worker: RegisteredWorker) -> tuple[object, ...]:
    return worker.id, worker.status, worker.types, worker.hostname, worker.version, worker.protocol, worker.seen_at


# -- credentials --------------------------------------------------------------------------------------------


@credentials.command(
    "create",
    epilog=examples_epilog(
        "ingot workers credentials create press-1 --type print > press-1.env", "… create ci --shared"
    ),
)
@server_command
def create(
    context: CommandContext,
    id: CredentialId,
    type: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="Job type that its workers may run. Default: all types. Can be repeated.",
            autocompletion=job_types,
        ),
    ] = None,
    shared: Annotated[bool, typer.Option("--shared", help="Serve all tenants; for operators.")] = False,
) -> None:
    """Create a worker credential and print it as settings for `ingot worker`.

    The secret is shown only once.
    """
    _show_secret(context, context.client.admin.create_worker(id, types=type or (), shared=shared))


@credentials.command("list", epilog=examples_epilog("ingot workers credentials list"))
@server_command
def list_credentials(context: CommandContext, shared: SharedOnly = False) -> None:
    """List worker credentials, without their secrets."""
    context.out.list(context.client.admin.worker_credentials(shared=shared), CREDENTIAL_COLUMNS, _credential_row)


@credentials.command(epilog=examples_epilog("ingot workers credentials regenerate press-1 > press-1.env"))
@server_command
def regenerate(context: CommandContext, id: CredentialId) -> None:
    """Replace the secret of a credential and print the new one.

    The secret is shown only once. The old one is no longer accepted, and the running jobs of its workers are released.
    """
    _show_secret(context, context.client.admin.regenerate_worker(id))


@credentials.command(epilog=examples_epilog("ingot workers credentials enable press-1"))
@server_command
def enable(context: CommandContext, id: CredentialId) -> None:
    """Enable a credential, so that its workers are accepted again."""
    _show_credential(context, context.client.admin.enable_worker(id))


@credentials.command(epilog=examples_epilog("ingot workers credentials disable press-1"))
@server_command
def disable(context: CommandContext, id: CredentialId) -> None:
    """Disable a credential.

    Its workers are rejected at once, and their running jobs are released.
    """
    _show_credential(context, context.client.admin.disable_worker(id))


def _show_secret(context: CommandContext, credential: WorkerCredentialWithSecret) -> None:
    if context.out.json:
        context.out.json_document(credential)
        return
    context.out.text(f"INGOT_WORKER_ID={credential.id}\nINGOT_WORKER_SECRET={credential.secret}\n")
    context.out.message("Set both variables for `ingot worker`. The secret is shown only once.")


def _show_credential(context: CommandContext, credential: WorkerCredential) -> None:
    if context.out.json:
        context.out.json_document(credential)
    else:
        context.out.table(CREDENTIAL_COLUMNS, [_credential_row(credential)])


def _credential_row(credential: WorkerCredential) -> tuple[object, ...]:
    return (
        credential.id,
        "yes" if credential.enabled else "no",
        credential.types or "all",
        f"…{credential.ending}",
        credential.created_at,
        credential.last_used_at or "never",
    )
