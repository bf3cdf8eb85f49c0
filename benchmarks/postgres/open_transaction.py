"""The effect of a transaction that stays open: the rate before it begins, and at the end of its time."""

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

BACKLOG_JOBS: Final = 2000  # Maximum number of waiting jobs, so that enqueueing keeps pace with the worker.
BATCH_JOBS: Final = 200
PAUSE_SECONDS: Final = 0.002
TABLES: Final = """
SELECT format('%I.%I', schemaname, tablename) FROM pg_tables
WHERE schemaname NOT IN ('pg_catalog', 'information_schema')
"""


async def measure_open_transaction(queue: Queue, request: RunRequest, system: System) -> RunResult:
    """Measure the rate of enqueueing and running jobs before and while a snapshot is open."""
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
        before = await measure_rate(starts, request.window_seconds)
        async with open_snapshot(request.url):
            await asyncio.sleep(max(0.0, request.seconds - request.window_seconds))
            after = await measure_rate(starts, request.window_seconds)
        running = False
        await enqueueing
    return RunResult(rate=after, before_rate=before)


async def measure_rate(starts: StartCounter, seconds: float) -> float:
    """Return the starts per second during the next seconds."""
    jobs, began = starts.jobs, time.perf_counter()
    await asyncio.sleep(seconds)
    return (starts.jobs - jobs) / (time.perf_counter() - began)


@asynccontextmanager
async def open_snapshot(url: str) -> AsyncIterator[None]:
    """Keep a transaction open that has read every table."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            for (table,) in await connection.fetch(TABLES):
                await connection.fetch(f"SELECT 1 FROM {table} LIMIT 1")
            yield
    finally:
        await connection.close()
