"""The command line: one file per noun, and one way to tell of an error."""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module
from importlib.metadata import version as version_of
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

from ingot.cli.help_text import examples_epilog, unwrap_docstring
from ingot.cli.output import print_message
from ingot.kernel.errors import IngotError

COMMANDS: Final = (
    "serve",
    "worker",
    "dev",
    "ingest",
    "jobs",
    "blobs",
    "workers",
    "tokens",
    "tenants",
    "secrets",
    "events",
    "database",
    "doctor",
)

EXIT_CODES_BY_STATUS: Final = {
    400: 2,
    401: 7,
    403: 7,
    404: 3,
    408: 9,
    409: 4,
    410: 4,
    412: 4,
    413: 2,
    422: 2,
    429: 5,
    501: 10,
    502: 10,
    503: 6,
    507: 5,
}  # By the HTTP status of the error; 1 for all others.
EXIT_CODES_BY_ERROR: Final = {"job_dead": 8, "job_canceled": 8}  # By the code of the error, where that tells more.
HINTS_BY_ERROR: Final = {
    "unauthorized": "Check INGOT_TOKEN or --token-file, of a worker INGOT_WORKER_ID and INGOT_WORKER_SECRET, "
    "and that they are of this server; `ingot doctor` helps.",
    "no_token": "Set INGOT_TOKEN or --token-file, for a worker INGOT_WORKER_ID and INGOT_WORKER_SECRET. "
    "On the machine of the server its operator.token is found by itself, "
    "when INGOT_DATA names the data folder or it is ./data.",
    "worker_not_found": "Check the id; `ingot workers list` has them.",
    "key_not_found": "Check its spelling; `ingot blobs ls` has those that are there.",
    "blob_not_found": "Check the id; a blob is read through a key, a job or an upload of this tenant.",
    "key_exists": "Nothing was changed. To replace what is there, say --replace.",
    "quota_exceeded": "Nothing was kept. `ingot blobs usage` tells what is used; delete what is not needed with "
    "`ingot blobs rm`, or have the quota raised with `ingot tenants change SLUG --limit quota_bytes=N`.",
    "token_quota_exceeded": "Nothing was kept. `ingot blobs usage --mine` tells what the token uses; delete what is "
    "not needed with `ingot blobs rm`. The quota of a token is set when it is made, and stays: for more, make another "
    "with `ingot tokens create DESCRIPTION --grant … --limit quota_bytes=N`.",
    "tenant_not_found": "Check the slug; `ingot tenants list` has them.",
}  # What to do about an error on the command line, where the server would say how to do it over HTTP.
EPILOG: Final = (
    "[bold]Exit codes[/bold]: 0 done; 1 something else; 2 a wrong value or option; 3 not found; 4 the state of things "
    "forbids it; 5 a limit is reached; 6 the server does not answer, or cannot now; 7 no token, or one that does not "
    "allow this; 8 a job did not succeed; 9 not in time; 10 no Ingot server, or one that is too old; 130 Ctrl-C.\n\n"
    '[bold]Examples[/bold]\n\n  $ ingot serve\n\n  $ ingot jobs submit greet --payload \'{"name": "Ada"}\' --wait'
)


class LazyCommandGroup(TyperGroup):
    """The commands, each read when it is asked for: who lists jobs does not wait for the server's code."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, as they are listed."""
        return [*COMMANDS, *(name for name in super().list_commands(ctx) if name not in COMMANDS)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command with this name."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module = import_module(f"ingot.cli.{cmd_name}")
        if hasattr(module, "app"):
            found = get_command(module.app)
        else:
            alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
            command = getattr(module, cmd_name)
            alone.command(cmd_name, help=unwrap_docstring(command.__doc__), epilog=examples_epilog(*module.EXAMPLES))(
                command
            )
            found = get_command(alone)
        found.name = cmd_name
        return found


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # The settings are among them.
    rich_markup_mode="rich",
    help="Durable jobs, blobs and documents, self-hosted.",
    epilog=EPILOG,
    cls=LazyCommandGroup,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"ingot {version_of('ingot')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Tell the version and exit.")
    ] = False,
) -> None:
    """Durable jobs, blobs and documents, self-hosted."""


def main() -> None:
    """Run the command that was asked for. An error is told in a sentence, with a hint, and an exit code."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # It was closed before we began.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - as long as we run
    try:
        app()
    except IngotError as error:
        print_message(f"ingot: {error.detail}")
        print_message(f"Hint: {_hint(error)}")
        _exit(EXIT_CODES_BY_ERROR.get(error.code) or EXIT_CODES_BY_STATUS.get(error.status, 1))


def _hint(error: IngotError) -> str:
    """What to do about an error; of a quota by whose it is."""
    if error.code == "quota_exceeded" and getattr(error, "scope", None) == "token":
        return HINTS_BY_ERROR["token_quota_exceeded"]
    return HINTS_BY_ERROR.get(error.code, error.hint)


def _exit(code: int) -> NoReturn:
    """End with a code. Handlers that do not stop when told would keep the process: nobody waits for them any more."""
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        os._exit(code)
    sys.exit(code)
