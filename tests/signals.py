"""Signals of a test run: processes that tests start get the default handlers, however the run itself was started.

A shell starts background jobs with SIGINT and SIGQUIT ignored, and nohup ignores SIGHUP. A child inherits ignored
signals, so that Ctrl-C would not end it. A signal with a handler is reset to its default in the child.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Final

RESTORED: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
IGNORED_VARIABLE: Final = "INGOT_TEST_IGNORED_SIGNALS"  # For xdist workers, which no longer inherit ignored signals.


def let_children_receive_signals() -> None:
    """Replace each ignored signal by a handler that does nothing, so that only this process ignores it."""
    names = os.environ.get(IGNORED_VARIABLE, "").split()
    ignored = [number for number in RESTORED if number.name in names or signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, _do_nothing)
    os.environ[IGNORED_VARIABLE] = " ".join(number.name for number in ignored)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Ignore the signal."""
