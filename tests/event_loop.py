"""The event loop that all tests of a process share, so that database connections can outlive a test."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

_loop: asyncio.AbstractEventLoop | None = None
_lasting = 0


def share(loop: asyncio.AbstractEventLoop | None) -> None:
    """Set or clear the loop that tests share."""
    global _loop  # noqa: PLW0603 - one per process
    _loop = loop


def is_shared(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether tests share this loop. Objects of any other loop end with their test."""
    return loop is _loop


def run(call: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the shared loop from synchronous code."""
    if _loop is None:
        share(asyncio.new_event_loop())
    assert _loop is not None
    return _loop.run_until_complete(call)


@contextmanager
def lasting_tasks() -> Iterator[None]:
    """Keep tasks after each test while the block runs, for fixtures that several tests share."""
    global _lasting  # noqa: PLW0603 - one per process
    _lasting += 1
    try:
        yield
    finally:
        _lasting -= 1


def cancel_leftovers() -> None:
    """Cancel the tasks that a test has left on the shared loop, and wait until they end."""
    if _lasting or _loop is None or _loop.is_closed() or _loop.is_running():
        return
    if tasks := asyncio.all_tasks(_loop):
        for task in tasks:
            task.cancel()
        _loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
