"""SIGHUP, which a process gets when its terminal is closed, and from `kill -HUP`. By default it ends the process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog

HANGUP_HINT: Final = "To apply new settings, restart the process. To stop it, send SIGTERM."
log = structlog.get_logger("ingot")


def survive_hangup() -> None:
    """Keep SIGHUP from ending this process. Child processes are not affected."""
    if not _is_ignored():
        signal.signal(signal.SIGHUP, lambda _number, _frame: None)


@contextmanager
def log_hangups(*, on_terminal_closed: Callable[[], None] | None = None) -> Iterator[None]:
    """Log each SIGHUP, and continue. If the terminal of this process was closed, call `on_terminal_closed` instead.

    A process that was started with SIGHUP ignored, as by nohup, keeps ignoring it. Requires a running event loop in the
    main thread.
    """
    if _is_ignored():
        yield
        return
    had_terminal = _has_terminal()

    def on_hangup() -> None:
        if on_terminal_closed is not None and had_terminal and not _has_terminal():
            log.info("terminal_closed")
            on_terminal_closed()
        else:
            log.info("hangup_ignored", hint=HANGUP_HINT)

    loop, previous = asyncio.get_running_loop(), signal.getsignal(signal.SIGHUP)
    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, previous)


def _is_ignored() -> bool:
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def _has_terminal() -> bool:
    """Return whether a standard stream is a terminal. After the terminal was closed, none is."""
    return any(map(os.isatty, (0, 1, 2)))
