"""One forgotten transaction: the rate before it begins, and at the end of the time that it is held open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Final

import asyncpg

from benchmarks.postgres.adapter import Queue, RunRequest, RunResult, System
from benchmarks.postgres.start_counter import StartCounter
from benchmarks.queue.adapter import payload

BACKLOG_JOBS: Final = 2000  # As many wait at most: enqueueing keeps pace with the worker.
BATCH_JOBS: Final = 200
PAUSE_SECONDS: Final = 0.002
TABLES: Final = """
SELECT format('%I.%I', schemaname, tablename) FROM pg_tables
WHERE schemaname NOT IN ('pg_catalog', 'information_schema')
"""


async def held(queue: Queue, request: RunRequest, system: System) -> RunResult:
    """Enqueue and run without a pause, and hold a snapshot open meanwhile."""
    starts, running = StartCounter(0), True

    async def enqueue() -> None:
        numbers = count()
        enqueued = 0
        while running:
            if enqueued - starts.jobs > BACKLOG_JOBS - BATCH_JOBS:
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                await queue.put_many([payload(next(numbers)) for _ in range(BATCH_JOBS)])
                enqueued += BATCH_JOBS

    async with queue.working(starts.record):
        enqueueing = asyncio.create_task(enqueue())
        await asyncio.sleep(request.warm_seconds)
        before = await rate(starts, request.window_seconds)
        async with snapshot(request.url):
            await asyncio.sleep(max(0.0, request.seconds - request.window_seconds))
            after = await rate(starts, request.window_seconds)
        running = False
        await enqueueing
    return RunResult(rate=after, before_rate=before)


async def rate(starts: StartCounter, seconds: float) -> float:
    """Starts per second in the seconds to come."""
    jobs, began = starts.jobs, time.perf_counter()
    await asyncio.sleep(seconds)
    return (starts.jobs - jobs) / (time.perf_counter() - began)


@asynccontextmanager
async def snapshot(url: str) -> AsyncIterator[None]:
    """A transaction that has read every table and is then forgotten."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            for (table,) in await connection.fetch(TABLES):
                await connection.fetch(f"SELECT 1 FROM {table} LIMIT 1")
            yield
    finally:
        await connection.close()
