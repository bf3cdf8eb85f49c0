"""pgqueuer on asyncpg, as in the PostgreSQL benchmark, with its worker in a separate process."""

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
from benchmarks.worker.postgres_submitter import PostgresSubmitter, submit_through
from benchmarks.worker.start_times import record_start

uvloop: Any = component("uvloop")
CLAIM_JOBS: Final = 250
BATCH_JOBS: Final = 100


@asynccontextmanager
async def submitting(address: SystemAddress) -> AsyncIterator[PostgresSubmitter]:
    async with (
        peer.open_pgqueuer(address.url, DriveOptions()) as queue,
        submit_through(queue, peer.SYSTEM, address) as submitter,
    ):
        yield submitter


async def _work(address: SystemAddress) -> None:
    application = peer.pgqueuer.PgQueuer.from_asyncpg_connection(await asyncpg.connect(address.url))

    @application.entrypoint(TYPE)  # type: ignore[untyped-decorator]
    async def noop(job: Any) -> None:
        record_start(msgspec.json.decode(job.payload)["number"])

    await asyncio.create_task(application.run(batch_size=CLAIM_JOBS, dequeue_timeout=timedelta(seconds=30)))


def work(address: SystemAddress) -> None:
    uvloop.run(_work(address))


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
