"""Counting calls of Python functions of the package, in all threads that are started meanwhile."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import ingot

PACKAGE: Final = f"{Path(ingot.__file__).parent}/"
INLINED: Final = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>"})  # Since Python 3.12 these are not calls.


class Calls:
    """The functions that were called, in order. A coroutine counts each time it resumes.

    Only functions of the package count, so that another version of a library changes nothing. Comprehensions do not.
    """

    def __init__(self) -> None:
        self._codes: list[CodeType] = []  # Appending is atomic: threads need no lock.

    def record(self, frame: FrameType, event: str, arg: Any) -> None:
        """Record an event of the interpreter; see `sys.setprofile`."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name not in INLINED:
            self._codes.append(code)

    def __len__(self) -> int:
        return len(self._codes)

    def since(self, start: int) -> Counter[str]:
        """How often each function was called after the first `start` calls."""
        return Counter(f"{code.co_filename.removeprefix(PACKAGE)}:{code.co_qualname}" for code in self._codes[start:])


@contextmanager
def counted_calls() -> Iterator[Calls]:
    """Count the calls of this thread, and of those that it starts, inside the block."""
    calls = Calls()
    before, before_in_threads = sys.getprofile(), threading.getprofile()
    threading.setprofile(calls.record)
    sys.setprofile(calls.record)
    try:
        yield calls
    finally:
        sys.setprofile(before)
        threading.setprofile(before_in_threads)
