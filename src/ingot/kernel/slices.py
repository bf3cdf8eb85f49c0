"""Work on many items in slices, between which the event loop serves other requests."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

SLICE_SECONDS: Final = 0.0005
UNSLICED_ITEMS_MAX: Final = 20  # So few items are processed at once, without looking at the time.

T = TypeVar("T")
R = TypeVar("R")
Turns = deque[asyncio.Future[None]]

_turns_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


async def map_in_slices(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return the results of a function for all items. The event loop serves other requests between slices of them."""
    if len(items) <= UNSLICED_ITEMS_MAX:
        return list(map(function, items))
    results: list[R] = []
    await next_slice()
    slice_end = time.perf_counter() + SLICE_SECONDS
    for item in items:
        if time.perf_counter() >= slice_end:
            await next_slice()
            slice_end = time.perf_counter() + SLICE_SECONDS
        results.append(function(item))
    return results


async def map_async_in_slices(function: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """Do the same as `map_in_slices` with an asynchronous function, which is called for one item after another."""
    results: list[R] = []
    slice_end = time.perf_counter() + SLICE_SECONDS
    for item in items:
        if time.perf_counter() >= slice_end and len(items) > UNSLICED_ITEMS_MAX:
            await next_slice()
            slice_end = time.perf_counter() + SLICE_SECONDS
        results.append(await function(item))
    return results


async def next_slice() -> None:
    """Let the event loop serve other requests, and return when it is the turn of this task.

    Only one slice runs in each iteration of the event loop, whatever the number of tasks that work in slices.
    """
    loop = asyncio.get_running_loop()
    turns = _turns_by_loop.setdefault(loop, deque())
    turn = loop.create_future()
    turns.append(turn)
    if len(turns) == 1:
        loop.call_soon(_pass_turn, loop, turns)
    await turn


def _pass_turn(loop: asyncio.AbstractEventLoop, turns: Turns) -> None:
    """Let the task that has waited longest run in the next iteration of the event loop."""
    while turns:
        turn = turns.popleft()
        if not turn.done():  # Otherwise its task was canceled.
            turn.set_result(None)
            break
    if turns:
        loop.call_soon(_pass_turn, loop, turns)
