"""The floor: hand-written SQL that claims and settles the same rows as Ingot, in batches of 100.

In Ingot's own tables, a claim replaces a row of `ready` by a lease, and a settle replaces the lease by an outcome.
There are no fence checks, events, counters or rules, and the caller uses the driver directly. The time that Ingot needs
beyond this is the cost of its guarantees.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg

from benchmarks.postgres.adapter import CALLERS, TYPE, DriveOptions, OnStart, System, version_of
from benchmarks.postgres.ingot_system import SYSTEM as OURS
from benchmarks.postgres.ingot_system import install
from benchmarks.queue.adapter import Payload
from ingot.kernel.ids import new_id

CLAIM_JOBS: Final = 100
PLANNER: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
}
TENANT: Final = "SELECT id FROM ingot.tenants LIMIT 1"
PUT: Final = f"""
WITH new_jobs AS MATERIALIZED (SELECT * FROM unnest($2::uuid[], $3::bytea[]) AS new_job (id, payload)),
inserted AS (
    INSERT INTO ingot.jobs (id, tenant, type, payload, created_at, source, depth)
    SELECT id, $1, '{TYPE}', payload, 1, 'manual', 0 FROM new_jobs
)
INSERT INTO ingot.ready (
    id, tenant, type, limit_key, priority, run_at, attempts, failures, crashes, max_attempts, fence
)
SELECT id, $1, '{TYPE}', '', 3, 1, 0, 0, 0, 5, 0 FROM new_jobs
"""
CLAIM: Final = f"""
WITH claimed AS (
    DELETE FROM ingot.ready WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM ingot.ready WHERE type = '{TYPE}' AND tenant = $1 AND limit_key = ''
        ORDER BY priority, run_at, id LIMIT $2 FOR UPDATE SKIP LOCKED
    )) RETURNING *
),
leased AS (
    INSERT INTO ingot.leases (
        id, tenant, type, limit_key, priority, run_at, attempts, failures, crashes, max_attempts, fence, worker_id,
        started_at, expires_at, changed_by
    )
    SELECT id, tenant, type, limit_key, priority, run_at, 1, 0, 0, max_attempts, 1, 'worker', 2, 3, pg_current_xact_id()
    FROM claimed
)
SELECT claimed.id, job.payload FROM claimed CROSS JOIN LATERAL (
    SELECT j.payload FROM ingot.jobs AS j WHERE j.id = claimed.id LIMIT 1
) AS job
"""
SETTLE: Final = """
WITH ended AS (DELETE FROM ingot.leases WHERE id = ANY ($1::uuid[]) RETURNING *)
INSERT INTO ingot.outcomes (
    job, fence, tenant, worker_id, started_at, outcome, retry, status_after, run_at, attempts, failures, crashes,
    max_attempts, priority, cancel_requested, finished_at, told_at
)
SELECT id, fence, tenant, worker_id, started_at, 'succeeded', true, 'succeeded', run_at, attempts, failures, crashes,
    max_attempts, priority, cancel_requested, 4, told_at
FROM ended
"""


class FloorQueue:
    """A pool of connections, and workers that have one each."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], tenant: object, options: DriveOptions) -> None:
        self._pool, self._tenant, self._options = pool, tenant, options
        self._jobs_enqueued = asyncio.Event()

    async def put(self, job: Payload) -> None:
        await self.put_many([job])

    async def put_many(self, jobs: list[Payload]) -> None:
        await self._pool.execute(
            PUT, self._tenant, [new_id() for _ in jobs], [json.dumps(job).encode() for job in jobs]
        )
        self._jobs_enqueued.set()

    @asynccontextmanager
    async def working(self, on_start: OnStart) -> AsyncIterator[None]:
        workers = [asyncio.create_task(self._work(on_start)) for _ in range(self._options.workers)]
        yield
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, on_start: OnStart) -> None:
        async with self._pool.acquire() as connection:
            while True:
                rows = await self._claim(connection)
                if not rows:
                    self._jobs_enqueued.clear()
                    await self._jobs_enqueued.wait()
                    continue
                for _ in rows:
                    on_start(0)
                await self._settle(connection, rows)

    async def _claim(self, connection: Any) -> list[Any]:
        rows: list[Any] = await connection.fetch(CLAIM, self._tenant, self._options.claim_jobs)
        return rows

    async def _settle(self, connection: Any, rows: list[Any]) -> None:
        await connection.execute(SETTLE, [row["id"] for row in rows])


@asynccontextmanager
async def open_floor(url: str, options: DriveOptions) -> AsyncIterator[FloorQueue]:
    pool = asyncpg.create_pool(url, min_size=1, max_size=options.connections, server_settings=PLANNER)
    async with pool:
        yield FloorQueue(pool, await pool.fetchval(TENANT), options)


def claiming(workers: int) -> DriveOptions:
    return DriveOptions(
        workers=workers,
        claim_jobs=CLAIM_JOBS,
        connections=workers + 6,
        label=f"{workers} connection{'s' if workers > 1 else ''}, claims of {CLAIM_JOBS}",
    )


SYSTEM = System(
    name="floor",
    version=f"asyncpg {version_of('asyncpg')}",
    run_jobs=OURS.run_jobs,
    unsettled=OURS.unsettled,
    install=install,
    open=open_floor,
    options={
        "single": (DriveOptions(callers=CALLERS, connections=10, label="32 callers, 10 connections"),),
        "bulk": (DriveOptions(callers=2, batch_jobs=1000, label="2 callers, batches of 1000"),),
        "run": (claiming(4), claiming(2), claiming(8)),
        "latency": (claiming(1),),
        "held": (claiming(4),),
    },
)
