"""Status messages of `ingot serve`, `ingot worker` and `ingot dev`."""

from __future__ import annotations

import sys

import structlog

from ingot.cli.output import print_message

log = structlog.get_logger("ingot.cli")


def print_or_log(event: str, message: str, **fields: str | int) -> None:
    """Print the message if stderr is a terminal. Otherwise log an event with these fields."""
    if sys.stderr.isatty():
        print_message(message)
    else:
        log.info(event, **fields)


def print_or_log_warning(event: str, message: str, **fields: str | int) -> None:
    """Print a warning if stderr is a terminal. Otherwise log it, with the message as `detail` and these fields."""
    if sys.stderr.isatty():
        print_message(f"Warning: {message}")
    else:
        log.warning(event, detail=message, **fields)
