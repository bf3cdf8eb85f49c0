"""What `ingot serve`, `worker` and `dev` say of themselves."""

from __future__ import annotations

import sys

import structlog
from rich.console import Console

log = structlog.get_logger("ingot.cli")


def print_or_log(event: str, sentence: str, **fields: str | int) -> None:
    """A sentence for who sits in front of it, and a line of the log for who does not."""
    if sys.stderr.isatty():
        Console(stderr=True, highlight=False, soft_wrap=True).print(sentence, markup=False)
    else:
        log.info(event, **fields)
