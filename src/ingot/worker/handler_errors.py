"""Tracebacks of handlers, from the first frame of the handler on."""

from __future__ import annotations

import concurrent.futures.thread
import traceback
from pathlib import Path
from types import TracebackType
from typing import Final

from ingot.kernel.logs import format_stack
from ingot.worker.job import sanitize_text

_FOLDER: Final = Path(__file__).parent
# The code that calls handlers. Its frames come before those of a handler and explain nothing.
_CALLER_FILES: Final = frozenset(
    (
        str(_FOLDER / "execution.py"),
        str(_FOLDER / "isolation" / "child.py"),
        str(_FOLDER.parent / "testing.py"),
        concurrent.futures.thread.__file__,
    )
)
UNKNOWN_STACK: Final = "The traceback cannot be shown, because formatting it failed.\n"


def handler_traceback(error: BaseException) -> TracebackType | None:
    """Return the traceback of an exception without the frames of the worker that called the handler."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in _CALLER_FILES:
        frames = frames.tb_next
    return frames


def handler_stack(error: BaseException) -> str:
    """Return the stack of an exception for the log of the worker. Never raises, whatever the exception does.

    It contains one line of each message, because the next lines often quote data.
    """
    try:
        return sanitize_text(format_stack(error, handler_traceback))
    except Exception:
        return UNKNOWN_STACK


def full_traceback(error: BaseException) -> str:
    """Return the traceback of an exception with its whole message, for the log of the job. Never raises."""
    try:
        return sanitize_text("".join(traceback.format_exception(type(error), error, handler_traceback(error))))
    except Exception:
        return UNKNOWN_STACK
