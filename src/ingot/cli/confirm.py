"""Asking before something is done that cannot be undone."""

from __future__ import annotations

import sys

import typer

from ingot.cli.output import print_message
from ingot.kernel.errors import InvalidInput


def confirm(question: str) -> None:
    """Ask on the terminal; no ends the command with 1. Raises `InvalidInput` where there is nobody to ask."""
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        raise InvalidInput("there is no terminal to ask on", hint="Say --yes to do it; nothing was changed.")
    if not typer.confirm(question, err=True):
        print_message("Nothing was changed.")
        raise typer.Exit(1)
