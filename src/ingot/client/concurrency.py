"""Concurrent calls with a limit: in tasks for the async client, in threads for the sync client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

T = TypeVar("T")


async def async_for_each(function: Callable[[T], Coroutine[Any, Any, None]], items: Iterable[T], *, limit: int) -> None:
    """Call a function with each item, at most `limit` at a time. The first error cancels the others and is raised."""
    remaining = iter(items)

    async def process_items() -> None:
        for item in remaining:
            await function(item)

    tasks = [asyncio.ensure_future(process_items()) for _ in range(limit)]
    try:
        for task in asyncio.as_completed(tasks):
            await task
    finally:
        for unfinished in tasks:
            unfinished.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def sync_for_each(function: Callable[[T], None], items: Iterable[T], *, limit: int) -> None:
    """Call a function with each item, at most `limit` at a time. The first error is raised, and no other call starts.

    Calls that are still running then are left alone. Their threads do not keep the program from exiting.
    """
    remaining, lock = iter(items), Lock()
    results: SimpleQueue[BaseException | None] = SimpleQueue()
    is_stopped = False

    def process_items() -> None:
        try:
            while not is_stopped:
                with lock:
                    item = next(remaining, results)  # The queue marks the end, since it is not an item.
                if item is results:
                    break
                function(item)  # type: ignore[arg-type]
        except BaseException as error:
            results.put(error)
        else:
            results.put(None)

    for _ in range(limit):
        Thread(target=process_items, daemon=True).start()
    try:
        for _ in range(limit):
            if (error := results.get()) is not None:
                raise error
    finally:
        is_stopped = True
