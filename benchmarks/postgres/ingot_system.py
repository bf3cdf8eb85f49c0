"""Ingot on PostgreSQL: its store and its jobs service, and a small worker loop of claims and settles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from benchmarks.postgres.adapter import CALLERS, TYPE, DriveOptions, OnStart, System, version_of
from benchmarks.postgres.server import as_role
from benchmarks.queue.adapter import Payload
from ingot.engines.postgres import PostgresStore, migrate
from ingot.engines.postgres.connection import SERVER_ROLE
from ingot.identity.tenants import Tenants
from ingot.jobs.job_options import new_job
from ingot.jobs.model import Done, Settle
from ingot.jobs.service import Jobs
from ingot.kernel.clock import SystemClock

WORKER: Final = "worker-1"
TENANT: Final = "bench"
LEASE_SECONDS: Final = 60
WAIT_SECONDS: Final = 30


class IngotQueue:
    """An open store."""

    def __init__(self, jobs: Jobs, tenant: str, options: DriveOptions) -> None:
        self._jobs, self._tenant, self._options = jobs, tenant, options

    async def put(self, job: Payload) -> None:
        await self._jobs.enqueue(self._tenant, TYPE, job)

    async def put_many(self, jobs: list[Payload]) -> None:
        await self._jobs.enqueue_many([new_job(self._tenant, TYPE, job) for job in jobs])

    @asynccontextmanager
    async def working(self, on_start: OnStart) -> AsyncIterator[None]:
        workers = [asyncio.create_task(self._work(on_start)) for _ in range(self._options.workers)]
        try:
            yield
        finally:
            await self._jobs.close()  # Ends waiting claims. Claimed jobs are still settled.
            await asyncio.gather(*workers)

    async def _work(self, on_start: OnStart) -> None:
        while claims := await self._jobs.claim(
            WORKER, [TYPE], limit=self._options.claim_jobs, wait_seconds=WAIT_SECONDS
        ):
            for _ in claims:
                on_start(0)
            results = await self._jobs.settle_many(
                [Settle(job_id=claim.job.id, fence=claim.fence, outcome=Done()) for claim in claims]
            )
            for result in results:
                if isinstance(result, Exception):
                    raise result


def install(url: str) -> None:
    asyncio.run(_install(url))


async def _install(url: str) -> None:
    await migrate(url)
    async with open_store(url, connections=1) as store:
        await Tenants(store).create(TENANT)


@asynccontextmanager
async def open_store(url: str, *, connections: int) -> AsyncIterator[PostgresStore]:
    """Open the store in a database with the role of a server."""
    store = await PostgresStore.open(
        as_role(url, SERVER_ROLE), clock=SystemClock(), lease_seconds=LEASE_SECONDS, connections=connections
    )
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def open_ours(url: str, options: DriveOptions) -> AsyncIterator[IngotQueue]:
    async with open_store(url, connections=options.connections) as store:
        jobs = Jobs(store, lease_seconds=LEASE_SECONDS)
        tenant = await Tenants(store).get(TENANT)
        yield IngotQueue(jobs, tenant.id, options)
        await jobs.close()


def _claiming(workers: int, claim_jobs: int) -> DriveOptions:
    return DriveOptions(workers=workers, claim_jobs=claim_jobs, label=f"{workers} concurrent claims of {claim_jobs}")


SYSTEM = System(
    name="ingot",
    version=version_of("ingot"),
    run_jobs=60_000,
    unsettled="SELECT EXISTS (SELECT FROM ingot.ready) OR EXISTS (SELECT FROM ingot.leases)",
    install=install,
    open=open_ours,
    options={
        "single": (DriveOptions(callers=CALLERS, workers=4, claim_jobs=250, label="32 callers"),),
        "bulk": tuple(
            DriveOptions(callers=callers, batch_jobs=jobs, label=f"{callers} callers, batches of {jobs}")
            for callers, jobs in ((4, 500), (2, 1000), (4, 1000))
        ),
        "run": (_claiming(4, 1000), _claiming(3, 1000), _claiming(4, 500), _claiming(4, 250)),
        "latency": (_claiming(2, 10), _claiming(1, 10)),
        "held": (_claiming(4, 250),),
    },
)
