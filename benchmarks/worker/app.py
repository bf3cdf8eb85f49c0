"""The handlers of Ingot's workers: one that does nothing, and one that takes its time."""

from __future__ import annotations

import asyncio
from typing import Final

from benchmarks.worker.adapter import TYPE
from benchmarks.worker.start_times import note
from ingot import Worker
from ingot.worker.job import WorkerJob

CONCURRENCY: Final = 500
SLOW: Final = "slow"
SLOW_SECONDS: Final = 600
worker = Worker()


@worker.handler(TYPE, concurrency=CONCURRENCY)
async def noop(job: WorkerJob) -> None:
    note(job.payload["number"])


def sleepers(concurrency: int) -> Worker:
    """A worker whose jobs sleep for longer than anybody looks."""
    found = Worker()

    @found.handler(SLOW, concurrency=concurrency)
    async def slow(job: WorkerJob) -> None:
        await asyncio.sleep(SLOW_SECONDS)

    return found
