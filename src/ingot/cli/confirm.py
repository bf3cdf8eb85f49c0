"""Confirmation prompts."""

from __future__ import annotations

import sys

import typer

from ingot.cli.output import print_message
from ingot.kernel.errors import InvalidInput


def confirm(question: str) -> None:
    """Ask for confirmation. Exit with 1 if the answer is no. Raises `InvalidInput` without a terminal."""
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        raise InvalidInput("confirmation needs a terminal", hint="Use --yes to skip it. Nothing was changed.")
    if not typer.confirm(question, err=True):
        print_message("Nothing was changed.")
        raise typer.Exit(1)
