"""Running a function for several items at once, with tasks and with threads."""

from __future__ import annotations

import asyncio
from threading import Barrier, Event, Thread

import pytest

from ingot.client.concurrency import async_for_each, sync_for_each

SECONDS = 30


async def test_async_for_each_handles_all_items_within_its_limit() -> None:
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


async def test_an_error_in_one_task_cancels_the_others() -> None:
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


def test_sync_for_each_handles_all_items_concurrently() -> None:
    barrier = Barrier(3)  # No thread passes it alone.
    done = []

    def work(item: int) -> None:
        barrier.wait(SECONDS)
        done.append(item)

    sync_for_each(work, range(9), limit=3)
    assert sorted(done) == list(range(9))


def test_an_error_in_one_thread_is_raised_without_waiting_for_the_others() -> None:
    resume, started = Event(), []

    def work(item: int) -> None:
        started.append(item)
        if item == 1:
            raise ValueError(item)
        resume.wait(SECONDS)

    with pytest.raises(ValueError, match="1"):
        sync_for_each(work, range(10), limit=3)
    resume.set()
    assert len(started) <= 3


def test_a_limit_above_the_number_of_items_is_allowed() -> None:
    done: list[int] = []
    thread = Thread(target=sync_for_each, args=(done.append, range(2)), kwargs={"limit": 5})
    thread.start()
    thread.join(SECONDS)
    assert sorted(done) == [0, 1]
