"""The handlers of Ingot's workers: one that does nothing, and one that sleeps."""

from __future__ import annotations

import asyncio
from typing import Final

from benchmarks.worker.adapter import TYPE
from benchmarks.worker.start_times import record_start
from ingot import Worker
from ingot.worker.job import WorkerJob

CONCURRENCY: Final = 500
SLOW: Final = "slow"
SLOW_SECONDS: Final = 600
worker = Worker()


@worker.handler(TYPE, concurrency=CONCURRENCY)
async def noop(job: WorkerJob) -> None:
    record_start(job.payload["number"])


def sleeping_worker(concurrency: int) -> Worker:
    """Return a worker whose jobs sleep for longer than the measurement."""
    sleeping = Worker()

    @sleeping.handler(SLOW, concurrency=concurrency)
    async def slow(job: WorkerJob) -> None:
        await asyncio.sleep(SLOW_SECONDS)

    return sleeping
