"""The process of one measured run: fills a queue, runs it empty, prints its figures as JSON."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.fair.scenarios import KEYS, SCENES, TENANTS, TYPE, RunRequest, RunResult, Scenario, shares
from benchmarks.postgres.server import as_role
from benchmarks.queue.adapter import component
from ingot.engines.postgres import PostgresStore, migrate
from ingot.engines.postgres.connection import SERVER_ROLE
from ingot.engines.sqlite import SQLiteStore
from ingot.identity.tenants import Tenants
from ingot.jobs.job_options import new_job
from ingot.jobs.model import Done, Settle
from ingot.jobs.service import Jobs
from ingot.kernel.clock import SystemClock

LEASE_SECONDS: Final = 600
ENQUEUE_JOBS: Final = 1000
WINDOW: Final = 2 * TENANTS  # Half of a fair share of so many starts is one start.
FILL: Final = "x" * 180

Store = SQLiteStore | PostgresStore


@asynccontextmanager
async def opened(order: RunRequest) -> AsyncIterator[Store]:
    """The store that is measured."""
    store: Store
    if order.engine == "sqlite":
        store = await SQLiteStore.open(Path(order.place), clock=SystemClock(), lease_seconds=LEASE_SECONDS)
    else:
        await migrate(order.place)
        store = await PostgresStore.open(
            as_role(order.place, SERVER_ROLE), clock=SystemClock(), lease_seconds=LEASE_SECONDS
        )
    try:
        yield store
    finally:
        await store.close()


async def measure(order: RunRequest) -> RunResult:
    """Run one queue empty."""
    scene = next(scene for scene in SCENES if scene.name == order.scene)
    async with opened(order) as store:
        jobs = Jobs(store, lease_seconds=LEASE_SECONDS)
        waiting = await fill(jobs, Tenants(store), scene, order.jobs)
        starts: list[tuple[int, int, str]] = []
        began = time.perf_counter()
        await asyncio.gather(*[work(jobs, order.claim_jobs, starts, waiting.total()) for _ in range(order.claims)])
        seconds = time.perf_counter() - began
        assert len(starts) == waiting.total(), "every job runs once"
        in_order = [tenant for _, _, tenant in sorted(starts)]
    return RunResult(jobs_per_second=len(starts) / seconds, least_share=least_share(in_order, waiting))


async def fill(jobs: Jobs, tenants: Tenants, scene: Scenario, count: int) -> Counter[str]:
    """Enqueue the jobs of a scene, in no order; answers how many each tenant has."""
    if scene.definition is not None:
        await jobs.define(scene.definition)
    waiting: Counter[str] = Counter()
    for number, share in enumerate(shares(scene.tenants, count)):
        tenant = await tenants.create(f"tenant-{number}", limits=scene.limits)
        waiting[tenant.id] = share
    whose = list(waiting.elements())
    random.Random(0).shuffle(whose)
    for at in range(0, len(whose), ENQUEUE_JOBS):
        part = enumerate(whose[at : at + ENQUEUE_JOBS], start=at)
        await jobs.enqueue_many([new_job(tenant, TYPE, {"fill": FILL, "key": place % KEYS}) for place, tenant in part])
    return waiting


async def work(jobs: Jobs, claim_jobs: int, starts: list[tuple[int, int, str]], total: int) -> None:
    """Claim and settle until all were started."""
    while len(starts) < total:
        claims = await jobs.claim("worker", [TYPE], limit=claim_jobs, wait_seconds=0.05)
        starts += [(claim.fence, place, claim.job.tenant) for place, claim in enumerate(claims)]
        if claims:
            await jobs.settle_many([Settle(job_id=c.job.id, fence=c.fence, outcome=Done()) for c in claims])


def least_share(starts: Sequence[str], waiting: Counter[str]) -> int:
    """The least number of starts in a window of them, of tenants that had work before and after it."""
    left = Counter(waiting)
    least = WINDOW
    for at in range(0, len(starts) - WINDOW, WINDOW):
        window = Counter(starts[at : at + WINDOW])
        left.subtract(window)
        least = min([least, *(window[tenant] for tenant, jobs in left.items() if jobs > 0)])
    return least


if __name__ == "__main__":
    uvloop: Any = component("uvloop")
    print(msgspec.json.encode(uvloop.run(measure(msgspec.json.decode(sys.argv[1], type=RunRequest)))).decode())
