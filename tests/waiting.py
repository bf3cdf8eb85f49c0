"""Wait in tests until a condition holds. The limit only catches a hang, so a slow machine passes too."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, overload

SECONDS_MAX: Final = 90.0
POLL_SECONDS: Final = 0.01
T = TypeVar("T")


def until(condition: Callable[[], T], *, seconds: float = SECONDS_MAX, why: str = "") -> T:
    """Wait until the condition returns a true value, and return it. Blocks the thread."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} seconds: {why or condition}"
        time.sleep(POLL_SECONDS)
    return value


@overload
async def eventually(condition: Callable[[], Awaitable[T]], *, seconds: float = ..., why: str = ...) -> T: ...
@overload
async def eventually(condition: Callable[[], T], *, seconds: float = ..., why: str = ...) -> T: ...
async def eventually(condition: Callable[[], Any], *, seconds: float = SECONDS_MAX, why: str = "") -> Any:
    """Wait until the condition returns a true value, and return it. `condition` may be a coroutine function."""
    deadline = time.monotonic() + seconds
    while not (value := await _value_of(condition())):
        assert time.monotonic() < deadline, f"not within {seconds:g} seconds: {why or condition}"
        await asyncio.sleep(POLL_SECONDS)
    return value


async def _value_of(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
