"""pgqueuer on asyncpg, its faster driver: `PgQueuer.run` with the batch size of its own benchmarks and larger ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg

from benchmarks.postgres.adapter import CALLERS, TYPE, DriveOptions, OnStart, System, version_of
from benchmarks.queue.adapter import Payload, component

pgqueuer: Any = component("pgqueuer")
drivers: Any = component("pgqueuer.db")
queries: Any = component("pgqueuer.queries")


class PgQueuerQueue:
    """A pool for enqueueing, and a worker with its own connections."""

    def __init__(self, url: str, pool: Any, options: DriveOptions) -> None:
        self._url, self._options = url, options
        self._queries = queries.Queries(drivers.AsyncpgPoolDriver(pool))

    async def put(self, job: Payload) -> None:
        await self._queries.enqueue(TYPE, json.dumps(job).encode(), 0)

    async def put_many(self, jobs: list[Payload]) -> None:
        texts = [json.dumps(job).encode() for job in jobs]
        await self._queries.enqueue([TYPE] * len(jobs), texts, [0] * len(jobs))

    @asynccontextmanager
    async def working(self, on_start: OnStart) -> AsyncIterator[None]:
        async with asyncpg.create_pool(self._url, min_size=2, max_size=self._options.connections) as pool:
            if self._options.variant == "pool":
                application = pgqueuer.PgQueuer.from_asyncpg_pool(pool)
            else:
                application = pgqueuer.PgQueuer.from_asyncpg_connection(await asyncpg.connect(self._url))

            @application.entrypoint(TYPE)  # type: ignore[untyped-decorator]
            async def work(job: Any) -> None:
                on_start(0)

            worker = asyncio.create_task(
                application.run(batch_size=self._options.claim_jobs, dequeue_timeout=timedelta(seconds=30))
            )
            try:
                yield
            finally:
                application.shutdown.set()
                await worker


def install(url: str) -> None:
    asyncio.run(_install(url))


async def _install(url: str) -> None:
    connection = await asyncpg.connect(url)
    await queries.Queries(drivers.AsyncpgDriver(connection)).install()
    await connection.close()


@asynccontextmanager
async def open_pgqueuer(url: str, options: DriveOptions) -> AsyncIterator[PgQueuerQueue]:
    async with asyncpg.create_pool(url, min_size=1, max_size=options.connections) as pool:
        yield PgQueuerQueue(url, pool, options)


def _batches(jobs: int, variant: str = "connection") -> DriveOptions:
    return DriveOptions(claim_jobs=jobs, variant=variant, label=f"batch_size {jobs}, one {variant}")


SYSTEM = System(
    name="pgqueuer",
    version=version_of("pgqueuer"),
    run_jobs=40_000,
    unsettled="SELECT EXISTS (SELECT FROM pgqueuer)",
    install=install,
    open=open_pgqueuer,
    options={
        "single": tuple(
            DriveOptions(callers=CALLERS, connections=connections, label=f"32 callers, {connections} connections")
            for connections in (32, 10)
        ),
        "bulk": tuple(
            DriveOptions(callers=callers, batch_jobs=jobs, label=f"{callers} callers, batches of {jobs}")
            for callers, jobs in ((4, 1000), (2, 1000))
        ),
        "run": (_batches(250), _batches(100), _batches(1000), _batches(1000, "pool")),
        "latency": (_batches(10), _batches(10, "pool")),
        "held": (_batches(250),),
    },
)
