"""pgqueuer on asyncpg, as in the benchmark on PostgreSQL, with its worker in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import asyncpg
import msgspec

from benchmarks.postgres import pgqueuer as peer
from benchmarks.postgres.adapter import TYPE, DriveOptions
from benchmarks.queue.adapter import component
from benchmarks.worker.adapter import System, SystemAddress
from benchmarks.worker.postgres_submitter import PostgresSubmitter, through
from benchmarks.worker.start_times import note

uvloop: Any = component("uvloop")
CLAIM_JOBS: Final = 250
BATCH_JOBS: Final = 100


@asynccontextmanager
async def submitting(place: SystemAddress) -> AsyncIterator[PostgresSubmitter]:
    async with peer.open_pgqueuer(place.url, DriveOptions()) as queue, through(queue, peer.SYSTEM, place) as found:
        yield found


async def _work(place: SystemAddress) -> None:
    application = peer.pgqueuer.PgQueuer.from_asyncpg_connection(await asyncpg.connect(place.url))

    @application.entrypoint(TYPE)  # type: ignore[untyped-decorator]
    async def noop(job: Any) -> None:
        note(msgspec.json.decode(job.payload)["number"])

    await asyncio.create_task(application.run(batch_size=CLAIM_JOBS, dequeue_timeout=timedelta(seconds=30)))


def work(place: SystemAddress) -> None:
    uvloop.run(_work(place))


SYSTEM = System(
    name="pgqueuer",
    version=peer.SYSTEM.version,
    jobs=40_000,
    how=f"batch_size {CLAIM_JOBS}, one connection, uvloop; enqueue of {BATCH_JOBS}, 2 callers",
    callers=2,
    batch_jobs=BATCH_JOBS,
    submitting=submitting,
    work=work,
)
