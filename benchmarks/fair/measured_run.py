"""The process of one measured run: fills a queue, runs all jobs, and prints the result as JSON."""

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

from benchmarks.fair.scenarios import KEYS, SCENARIOS, TENANTS, TYPE, RunRequest, RunResult, Scenario, shares
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
WINDOW: Final = 2 * TENANTS  # Half of the fair share of a window is one start.
FILL: Final = "x" * 180

Store = SQLiteStore | PostgresStore


@asynccontextmanager
async def open_store(request: RunRequest) -> AsyncIterator[Store]:
    """Open the measured store."""
    store: Store
    if request.engine == "sqlite":
        store = await SQLiteStore.open(Path(request.address), clock=SystemClock(), lease_seconds=LEASE_SECONDS)
    else:
        await migrate(request.address)
        store = await PostgresStore.open(
            as_role(request.address, SERVER_ROLE), clock=SystemClock(), lease_seconds=LEASE_SECONDS
        )
    try:
        yield store
    finally:
        await store.close()


async def measure(request: RunRequest) -> RunResult:
    """Fill a queue and run all its jobs."""
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == request.scenario)
    async with open_store(request) as store:
        jobs = Jobs(store, lease_seconds=LEASE_SECONDS)
        waiting = await fill(jobs, Tenants(store), scenario, request.jobs)
        starts: list[tuple[int, int, str]] = []
        began = time.perf_counter()
        await asyncio.gather(*[work(jobs, request.claim_jobs, starts, waiting.total()) for _ in range(request.claims)])
        seconds = time.perf_counter() - began
        assert len(starts) == waiting.total(), "every job runs once"
        tenants_by_start = [tenant for _, _, tenant in sorted(starts)]
    return RunResult(jobs_per_second=len(starts) / seconds, least_share=least_share(tenants_by_start, waiting))


async def fill(jobs: Jobs, tenants: Tenants, scenario: Scenario, count: int) -> Counter[str]:
    """Enqueue the jobs of a scenario in random order, and return the number of jobs of each tenant."""
    if scenario.definition is not None:
        await jobs.define(scenario.definition)
    waiting: Counter[str] = Counter()
    for number, share in enumerate(shares(scenario.tenants, count)):
        tenant = await tenants.create(f"tenant-{number}", limits=scenario.limits)
        waiting[tenant.id] = share
    job_tenants = list(waiting.elements())
    random.Random(0).shuffle(job_tenants)
    for start in range(0, len(job_tenants), ENQUEUE_JOBS):
        batch = enumerate(job_tenants[start : start + ENQUEUE_JOBS], start=start)
        await jobs.enqueue_many(
            [new_job(tenant, TYPE, {"fill": FILL, "key": number % KEYS}) for number, tenant in batch]
        )
    return waiting


async def work(jobs: Jobs, claim_jobs: int, starts: list[tuple[int, int, str]], total: int) -> None:
    """Claim and settle until all jobs have been started."""
    while len(starts) < total:
        claims = await jobs.claim("worker", [TYPE], limit=claim_jobs, wait_seconds=0.05)
        starts += [(claim.fence, index, claim.job.tenant) for index, claim in enumerate(claims)]
        if claims:
            await jobs.settle_many([Settle(job_id=c.job.id, fence=c.fence, outcome=Done()) for c in claims])


def least_share(starts: Sequence[str], waiting: Counter[str]) -> int:
    """Return the lowest number of starts in a window, of tenants that have work before and after it."""
    remaining = Counter(waiting)
    least = WINDOW
    for start in range(0, len(starts) - WINDOW, WINDOW):
        window = Counter(starts[start : start + WINDOW])
        remaining.subtract(window)
        least = min([least, *(window[tenant] for tenant, jobs in remaining.items() if jobs > 0)])
    return least


if __name__ == "__main__":
    uvloop: Any = component("uvloop")
    print(msgspec.json.encode(uvloop.run(measure(msgspec.json.decode(sys.argv[1], type=RunRequest)))).decode())
