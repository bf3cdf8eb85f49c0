"""The `ingot` command line. Each command or command group has a module of its own."""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

from ingot.cli.help_text import examples_epilog, unwrap_docstring
from ingot.cli.output import print_message
from ingot.kernel.build import read_build
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
    "members",
    "secrets",
    "events",
    "database",
    "doctor",
)

# Exit codes by the HTTP status of an error. Every other status exits with 1.
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
}
# Exit codes by the code of an error. They take precedence over the status.
EXIT_CODES_BY_ERROR: Final = {"job_dead": 8, "job_canceled": 8, "proxy_limit": 5}
# Hints for command-line users by the code of an error. They replace the server's hints, which refer to the HTTP API.
HINTS_BY_ERROR: Final = {
    "unauthorized": "Check INGOT_TOKEN or --token-file (for a worker: INGOT_WORKER_ID and INGOT_WORKER_SECRET), "
    "and that the credential belongs to this server. `ingot doctor` checks both.",
    "no_token": "Set INGOT_TOKEN or use --token-file (for a worker: set INGOT_WORKER_ID and INGOT_WORKER_SECRET). "
    "On the server's own machine, operator.token is found automatically "
    "if INGOT_DATA names the data folder or the data folder is ./data.",
    "worker_not_found": "Check the ID. `ingot workers list` shows all workers.",
    "key_not_found": "Check the spelling. `ingot blobs ls` shows all keys.",
    "blob_not_found": "Check the ID. A blob is readable only while a key, job or upload of this tenant refers to it.",
    "key_exists": "Nothing was changed. Use --replace to overwrite the key.",
    "quota_exceeded": "Nothing was stored. `ingot blobs usage` shows how much is used. Delete keys with "
    "`ingot blobs rm`, or raise the quota with `ingot tenants change SLUG --limit quota_bytes=N`.",
    "token_quota_exceeded": "Nothing was stored. `ingot blobs usage --mine` shows how much this token uses. Delete "
    "keys with `ingot blobs rm`. The quota of a token cannot be changed: for a larger one, create another token with "
    "`ingot tokens create DESCRIPTION --grant … --limit quota_bytes=N`.",
    "tenant_not_found": "Check the slug. `ingot tenants list` shows all tenants.",
}
EPILOG: Final = (
    "[bold]Exit codes[/bold]: 0 success; 1 other error; 2 invalid option or value; 3 not found; 4 conflict; 5 limit or "
    "quota reached; 6 server unreachable or unavailable; 7 missing, invalid or insufficient token; 8 job did not "
    "succeed; 9 timed out; 10 not an Ingot server, or one that is too old; 130 interrupted by Ctrl-C.\n\n"
    '[bold]Examples[/bold]\n\n  $ ingot serve\n\n  $ ingot jobs submit greet --payload \'{"name": "Ada"}\' --wait'
)


class LazyCommandGroup(TyperGroup):
    """The group of all commands, each imported on first use, so that client commands do not load the server."""

    def list_commands(self, ctx: Any) -> list[str]:
        """List the names of the commands, in the order of the help."""
        return [*COMMANDS, *(name for name in super().list_commands(ctx) if name not in COMMANDS)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return the command with this name."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module = import_module(f"ingot.cli.{cmd_name}")
        if hasattr(module, "app"):
            command = get_command(module.app)
        else:
            single_command_app = typer.Typer(add_completion=False, rich_markup_mode="rich")
            function = getattr(module, cmd_name)
            single_command_app.command(
                cmd_name, help=unwrap_docstring(function.__doc__), epilog=examples_epilog(*module.EXAMPLES)
            )(function)
            command = get_command(single_command_app)
        command.name = cmd_name
        return command


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # Locals can contain settings, and so secrets.
    rich_markup_mode="rich",
    help="Durable jobs, blobs and documents, self-hosted.",
    epilog=EPILOG,
    cls=LazyCommandGroup,
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"ingot {read_build().version}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the release and the commit, and exit."
        ),
    ] = False,
) -> None:
    """Durable jobs, blobs and documents, self-hosted."""


def main() -> None:
    """Run the command in `sys.argv`. Print an `IngotError` with its hint and exit with its code."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # The stream was closed before the process started.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open until the process exits
    try:
        app()
    except IngotError as error:
        print_message(f"ingot: {error.detail}")
        print_message(f"Hint: {_hint(error)}")
        _exit(EXIT_CODES_BY_ERROR.get(error.code) or EXIT_CODES_BY_STATUS.get(error.status, 1))


def _hint(error: IngotError) -> str:
    """Return the hint for an error. An exceeded quota has different hints for a tenant and for a token."""
    if error.code == "quota_exceeded" and getattr(error, "scope", None) == "token":
        return HINTS_BY_ERROR["token_quota_exceeded"]
    return HINTS_BY_ERROR.get(error.code, error.hint)


def _exit(code: int) -> NoReturn:
    """Exit with a code, without waiting for the threads of handlers that ignore a request to stop."""
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        os._exit(code)
    sys.exit(code)
