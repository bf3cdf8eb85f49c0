"""Logs: static event names with fields, on standard error, never with the values of local variables."""

from __future__ import annotations

import sys
from contextlib import suppress

import structlog


def configure_logs() -> None:
    """Set the logs up, unless the program that uses us has done so.

    Left alone, structlog draws tracebacks with local variables, and with them payloads.
    """
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def report(event: str, error: BaseException, **fields: object) -> None:
    """Log an error from where nothing may be raised: a log that cannot be written loses the line, not the thread."""
    with suppress(Exception):
        structlog.get_logger("ingot").error(event, exc_info=error, **fields)
