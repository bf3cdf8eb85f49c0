"""Status messages of `ingot serve`, `ingot worker` and `ingot dev`."""

from __future__ import annotations

import sys

import structlog
from rich.console import Console

log = structlog.get_logger("ingot.cli")


def print_or_log(event: str, message: str, **fields: str | int) -> None:
    """Print the message if stderr is a terminal. Otherwise log an event with these fields."""
    if sys.stderr.isatty():
        Console(stderr=True, highlight=False, soft_wrap=True).print(message, markup=False)
    else:
        log.info(event, **fields)


def print_or_log_warning(event: str, message: str, **fields: str | int) -> None:
    """Print a warning if stderr is a terminal. Otherwise log it, with the message as `detail` and these fields."""
    if sys.stderr.isatty():
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"Warning: {message}", markup=False)
    else:
        log.warning(event, detail=message, **fields)
