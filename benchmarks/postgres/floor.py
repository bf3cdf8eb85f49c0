"""The floor: two tables and hand-written SQL that claims and settles rows in batches of 100, and promises nothing else.

What a system adds to it is the price of its promises.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import asyncpg

from benchmarks.postgres.adapter import CALLERS, Ran, System, Way, version_of
from benchmarks.queue.adapter import Payload

CLAIM_JOBS: Final = 100
SCHEMA: Final = """
CREATE TABLE waiting (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload text NOT NULL);
CREATE TABLE done (id bigint PRIMARY KEY, payload text NOT NULL);
"""
PUT: Final = "INSERT INTO waiting (payload) VALUES ($1)"
PUT_MANY: Final = "INSERT INTO waiting (payload) SELECT * FROM unnest($1::text[])"
CLAIM: Final = """
DELETE FROM waiting WHERE id = ANY (ARRAY(
    SELECT id FROM waiting ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
)) RETURNING id, payload
"""
SETTLE: Final = "INSERT INTO done (id, payload) SELECT * FROM unnest($1::bigint[], $2::text[])"


class Floor:
    """A pool of connections."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], way: Way) -> None:
        self._pool, self._way = pool, way
        self._news = asyncio.Event()

    async def put(self, job: Payload) -> None:
        await self._pool.execute(PUT, json.dumps(job))
        self._news.set()

    async def put_many(self, jobs: list[Payload]) -> None:
        await self._pool.execute(PUT_MANY, [json.dumps(job) for job in jobs])
        self._news.set()

    @asynccontextmanager
    async def working(self, ran: Ran) -> AsyncIterator[None]:
        workers = [asyncio.create_task(self._work(ran)) for _ in range(self._way.workers)]
        yield
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, ran: Ran) -> None:
        async with self._pool.acquire() as connection:
            while True:
                rows = await connection.fetch(CLAIM, self._way.claim_jobs)
                if not rows:
                    self._news.clear()
                    await self._news.wait()
                    continue
                for _ in rows:
                    ran(0)
                await connection.execute(SETTLE, [row["id"] for row in rows], [row["payload"] for row in rows])


def install(url: str) -> None:
    asyncio.run(_install(url))


async def _install(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(SCHEMA)
    await connection.close()


@asynccontextmanager
async def open_floor(url: str, way: Way) -> AsyncIterator[Floor]:
    async with asyncpg.create_pool(url, min_size=1, max_size=way.connections) as pool:
        yield Floor(pool, way)


def _claiming(workers: int) -> Way:
    return Way(
        workers=workers,
        claim_jobs=CLAIM_JOBS,
        connections=workers + 6,
        label=f"{workers} connection{'s' if workers > 1 else ''}, claims of {CLAIM_JOBS}",
    )


# The last claim is settled after the last start: the rows in `done` tell.
SYSTEM = System(
    name="floor",
    version=f"asyncpg {version_of('asyncpg')}",
    run_jobs=100_000,
    unsettled="SELECT (SELECT count(*) FROM done) < {jobs}",
    install=install,
    open=open_floor,
    ways={
        "single": tuple(
            Way(callers=CALLERS, connections=connections, label=f"32 callers, {connections} connections")
            for connections in (32, 10)
        ),
        "bulk": tuple(
            Way(callers=callers, batch_jobs=jobs, label=f"{callers} callers, batches of {jobs}")
            for callers, jobs in ((4, 1000), (2, 2000))
        ),
        "run": (_claiming(4), _claiming(2), _claiming(8)),
        "latency": (_claiming(1),),
        "held": (_claiming(4),),
    },
)
