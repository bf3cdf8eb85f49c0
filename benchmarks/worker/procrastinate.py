"""procrastinate on psycopg, as in the benchmark on PostgreSQL, with its worker in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from benchmarks.postgres import procrastinate as peer
from benchmarks.postgres.adapter import DriveOptions
from benchmarks.queue.adapter import component
from benchmarks.worker.adapter import System, SystemAddress
from benchmarks.worker.postgres_submitter import PostgresSubmitter, through
from benchmarks.worker.start_times import note

uvloop: Any = component("uvloop")
WAY: Final = DriveOptions(workers=30, option="successful")
BATCH_JOBS: Final = 100


@asynccontextmanager
async def submitting(place: SystemAddress) -> AsyncIterator[PostgresSubmitter]:
    async with peer.open_procrastinate(place.url, WAY) as queue, through(queue, peer.SYSTEM, place) as found:
        yield found


async def _work(place: SystemAddress) -> None:
    async with peer.open_procrastinate(place.url, WAY) as queue, queue.working(note):
        await asyncio.Event().wait()


def work(place: SystemAddress) -> None:
    uvloop.run(_work(place))


SYSTEM = System(
    name="procrastinate",
    version=peer.SYSTEM.version,
    jobs=3_000,
    how=f"concurrency {WAY.workers}, deletes what succeeded, uvloop; batch_defer of {BATCH_JOBS}, 2 callers",
    callers=2,
    batch_jobs=BATCH_JOBS,
    submitting=submitting,
    work=work,
)
