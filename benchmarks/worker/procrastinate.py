"""procrastinate on psycopg, as in the PostgreSQL benchmark, with its worker in a separate process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from benchmarks.postgres import procrastinate as peer
from benchmarks.postgres.adapter import DriveOptions
from benchmarks.queue.adapter import component
from benchmarks.worker.adapter import System, SystemAddress
from benchmarks.worker.postgres_submitter import PostgresSubmitter, submit_through
from benchmarks.worker.start_times import record_start

uvloop: Any = component("uvloop")
OPTIONS: Final = DriveOptions(workers=30, variant="successful")
BATCH_JOBS: Final = 100


@asynccontextmanager
async def submitting(address: SystemAddress) -> AsyncIterator[PostgresSubmitter]:
    async with (
        peer.open_procrastinate(address.url, OPTIONS) as queue,
        submit_through(queue, peer.SYSTEM, address) as submitter,
    ):
        yield submitter


async def _work(address: SystemAddress) -> None:
    async with peer.open_procrastinate(address.url, OPTIONS) as queue, queue.working(record_start):
        await asyncio.Event().wait()


def work(address: SystemAddress) -> None:
    uvloop.run(_work(address))


SYSTEM = System(
    name="procrastinate",
    version=peer.SYSTEM.version,
    jobs=3_000,
    how=f"concurrency {OPTIONS.workers}, deletes what succeeded, uvloop; batch_defer of {BATCH_JOBS}, 2 callers",
    callers=2,
    batch_jobs=BATCH_JOBS,
    submitting=submitting,
    work=work,
)
