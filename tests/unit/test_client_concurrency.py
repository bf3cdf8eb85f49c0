"""Several things at once, for those who await and those who do not."""

from __future__ import annotations

import asyncio
from threading import Barrier, Event, Thread

import pytest

from ingot.client.concurrency import async_for_each, sync_for_each

SECONDS = 30


async def test_tasks_do_all_and_no_more_at_a_time_than_they_may() -> None:
    running = most = 0
    done = []

    async def work(item: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        done.append(item)

    await async_for_each(work, range(10), limit=3)
    assert (sorted(done), most) == (list(range(10)), 3)


async def test_the_first_task_that_goes_wrong_ends_the_others() -> None:
    ended = asyncio.Event()

    async def work(item: int) -> None:
        if item == 1:
            raise ValueError(item)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(ValueError, match="1"):
        await async_for_each(work, range(10), limit=3)
    assert ended.is_set()


def test_threads_do_all_and_at_once() -> None:
    together = Barrier(3)  # Nobody gets past it alone.
    done = []

    def work(item: int) -> None:
        together.wait(SECONDS)
        done.append(item)

    sync_for_each(work, range(9), limit=3)
    assert sorted(done) == list(range(9))


def test_the_first_thread_that_goes_wrong_is_told_and_nobody_waits_for_the_others() -> None:
    held, begun = Event(), []

    def work(item: int) -> None:
        begun.append(item)
        if item == 1:
            raise ValueError(item)
        held.wait(SECONDS)

    with pytest.raises(ValueError, match="1"):
        sync_for_each(work, range(10), limit=3)
    held.set()
    assert len(begun) <= 3


def test_more_hands_than_things_to_do_are_no_harm() -> None:
    done: list[int] = []
    doing = Thread(target=sync_for_each, args=(done.append, range(2)), kwargs={"limit": 5})
    doing.start()
    doing.join(SECONDS)
    assert sorted(done) == [0, 1]
