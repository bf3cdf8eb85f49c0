"""Two tables and hand-written SQL that claims and settles rows in batches of 100, without any guarantees.

A crashed worker loses its claimed jobs, so no queue that keeps them can be as fast.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg

from benchmarks.postgres.adapter import CALLERS, DriveOptions, System, version_of
from benchmarks.postgres.floor import FloorQueue, claiming
from benchmarks.queue.adapter import Payload

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


class BareSqlQueue(FloorQueue):
    """The workers of the floor, on fewer and smaller rows."""

    async def put(self, job: Payload) -> None:
        await self._pool.execute(PUT, json.dumps(job))
        self._jobs_enqueued.set()

    async def put_many(self, jobs: list[Payload]) -> None:
        await self._pool.execute(PUT_MANY, [json.dumps(job) for job in jobs])
        self._jobs_enqueued.set()

    async def _claim(self, connection: Any) -> list[Any]:
        rows: list[Any] = await connection.fetch(CLAIM, self._options.claim_jobs)
        return rows

    async def _settle(self, connection: Any, rows: list[Any]) -> None:
        await connection.execute(SETTLE, [row["id"] for row in rows], [row["payload"] for row in rows])


def install(url: str) -> None:
    asyncio.run(_install(url))


async def _install(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(SCHEMA)
    await connection.close()


@asynccontextmanager
async def open_bare(url: str, options: DriveOptions) -> AsyncIterator[BareSqlQueue]:
    async with asyncpg.create_pool(url, min_size=1, max_size=options.connections) as pool:
        yield BareSqlQueue(pool, None, options)


# The last claim is settled after the last start, so count the rows in `done`.
SYSTEM = System(
    name="bare",
    version=f"asyncpg {version_of('asyncpg')}",
    run_jobs=100_000,
    unsettled="SELECT (SELECT count(*) FROM done) < {jobs}",
    install=install,
    open=open_bare,
    options={
        "single": tuple(
            DriveOptions(callers=CALLERS, connections=connections, label=f"32 callers, {connections} connections")
            for connections in (32, 10)
        ),
        "bulk": tuple(
            DriveOptions(callers=callers, batch_jobs=jobs, label=f"{callers} callers, batches of {jobs}")
            for callers, jobs in ((4, 1000), (2, 2000))
        ),
        "run": (claiming(4), claiming(2), claiming(8)),
        "latency": (claiming(1),),
        "held": (claiming(4),),
    },
)
