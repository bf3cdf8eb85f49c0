"""The command line: one file per noun, and one way to tell of an error."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer
from rich.console import Console

from ingot.api.ops import VERSION
from ingot.cli.dev import dev
from ingot.cli.serve import serve
from ingot.cli.worker import worker
from ingot.kernel.errors import IngotError

EXIT_CODES: Final = {404: 3, 409: 4, 422: 2, 429: 5, 503: 6}  # By the HTTP status of the error; 1 for all others.

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,  # The settings are among them.
    help="Durable jobs, blobs and documents, self-hosted.",
)
app.command()(serve)
app.command()(worker)
app.command()(dev)


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"ingot {VERSION}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Tell the version and exit.")
    ] = False,
) -> None:
    """Durable jobs, blobs and documents, self-hosted."""


def main() -> None:
    """Run the command that was asked for. An error is told in a sentence, with a hint, and an exit code."""
    try:
        app()
    except IngotError as error:
        tell = Console(stderr=True, highlight=False, soft_wrap=True)
        tell.print(f"ingot: {error.detail}", markup=False)
        tell.print(f"Hint: {error.hint}", markup=False)
        sys.exit(EXIT_CODES.get(error.status, 1))
