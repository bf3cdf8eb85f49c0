"""Several things at once: with tasks for who awaits, with threads for who does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

T = TypeVar("T")


async def async_for_each(work: Callable[[T], Coroutine[Any, Any, None]], items: Iterable[T], *, limit: int) -> None:
    """Do it with each, so many at a time. The first that goes wrong ends the others, and is raised."""
    left = iter(items)

    async def do_some() -> None:
        for item in left:
            await work(item)

    doing = [asyncio.ensure_future(do_some()) for _ in range(limit)]
    try:
        for one in asyncio.as_completed(doing):
            await one
    finally:
        for task in doing:
            task.cancel()
        await asyncio.gather(*doing, return_exceptions=True)


def sync_for_each(work: Callable[[T], None], items: Iterable[T], *, limit: int) -> None:
    """Do it with each, so many at a time. After the first that goes wrong no other is begun, and it is raised.

    Nobody waits for those under way: a program that is stopped is not kept by them.
    """
    left, door = iter(items), Lock()
    ended: SimpleQueue[BaseException | None] = SimpleQueue()
    over = False

    def do_some() -> None:
        try:
            while not over:
                with door:
                    item = next(left, ended)
                if item is ended:
                    break
                work(item)  # type: ignore[arg-type]
        except BaseException as error:
            ended.put(error)
        else:
            ended.put(None)

    for _ in range(limit):
        Thread(target=do_some, daemon=True).start()
    try:
        for _ in range(limit):
            if (error := ended.get()) is not None:
                raise error
    finally:
        over = True
