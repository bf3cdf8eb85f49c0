"""Wait in tests until a condition holds. The limit only catches a hang, so a slow machine passes too."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

SECONDS_MAX: Final = 45.0
LOOK_SECONDS: Final = 0.01
T = TypeVar("T")


def until(holds: Callable[[], T], *, seconds: float = SECONDS_MAX, why: str = "") -> T:
    """Wait until something is true, and return it. Blocks the thread."""
    deadline = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < deadline, f"not within {seconds:g} seconds: {why or holds}"
        time.sleep(LOOK_SECONDS)
    return value


async def eventually(holds: Callable[[], T | Awaitable[T]], *, seconds: float = SECONDS_MAX, why: str = "") -> T:
    """Wait until something is true, and return it. `holds` may be a coroutine function."""
    deadline = time.monotonic() + seconds
    while not (value := await _value_of(holds)):
        assert time.monotonic() < deadline, f"not within {seconds:g} seconds: {why or holds}"
        await asyncio.sleep(LOOK_SECONDS)
    return value


async def _value_of(holds: Callable[[], T | Awaitable[T]]) -> T:
    value = holds()
    return await value if inspect.isawaitable(value) else value
