"""The process of one measured store: fills it with very many jobs of one tenant, then measures read calls."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Any, Final

import asyncpg
import msgspec

from benchmarks.fair.measured_run import open_store
from benchmarks.fair.scenarios import TYPE, CallLatency, RunRequest
from benchmarks.queue.adapter import component
from ingot.identity.tenants import Tenants
from ingot.jobs.job_options import new_job
from ingot.jobs.model import Done, Failed, JobStatus, NewJob, Settle, Source
from ingot.jobs.service import Jobs

LEASE_SECONDS: Final = 600
BATCH_JOBS: Final = 1000
CALLERS: Final = 4
RARE: Final = 5000  # One of this number of jobs is of each rare kind.
WAITING_SHARE: Final = 0.1
RUNNING: Final = 500
PAGE: Final = 50
PAGES_DEEP: Final = 20
TIMES: Final = 20
VACUUM_SECONDS_MAX: Final = 300


async def measure(request: RunRequest) -> list[CallLatency]:
    """Fill a store, and measure every call."""
    async with open_store(request) as store:
        jobs = Jobs(store, lease_seconds=LEASE_SECONDS)
        tenant = (await Tenants(store).create("million")).id
        middle = await fill(jobs, tenant, request.jobs)
        if request.engine == "postgres":
            await wait_for_vacuum(request.address)
        return [await measure_call(name, call) for name, call in (await calls(jobs, tenant, middle)).items()]


async def wait_for_vacuum(url: str) -> None:
    """Wait until autovacuum has removed the rows of jobs that no longer wait, which takes about a minute."""
    connection = await asyncpg.connect(url)
    async with asyncio.timeout(VACUUM_SECONDS_MAX):
        while not await connection.fetchval(  # noqa: ASYNC110 - the server has no notification
            "SELECT last_autovacuum IS NOT NULL AND n_dead_tup < n_live_tup FROM pg_stat_user_tables"
            " WHERE schemaname = 'ingot' AND relname = 'ready'"
        ):
            await asyncio.sleep(1)
    await connection.close()


async def fill(jobs: Jobs, tenant: str, count: int) -> datetime:
    """Create waiting, running, finished, dead and canceled jobs. Return a creation time in the middle."""
    starts = iter(range(0, count, BATCH_JOBS))
    times: list[datetime] = []

    async def enqueue() -> None:
        for start in starts:
            enqueued = await jobs.enqueue_many(
                [new_order(tenant, n) for n in range(start, min(start + BATCH_JOBS, count))]
            )
            times.append(enqueued[0].job.created_at)

    jobs_left = count - round(count * WAITING_SHARE)

    async def run() -> None:
        nonlocal jobs_left
        while jobs_left > 0:
            limit = min(BATCH_JOBS, jobs_left)
            jobs_left -= limit
            claims = await jobs.claim("worker", [TYPE, "rare"], limit=limit)
            outcomes = [Failed(error="broken", retry=False) if n % RARE == 1 else Done() for n in range(len(claims))]
            await jobs.settle_many(
                [
                    Settle(job_id=claim.job.id, fence=claim.fence, outcome=outcome)
                    for claim, outcome in zip(claims, outcomes, strict=True)
                ]
            )

    await asyncio.gather(*(enqueue() for _ in range(CALLERS)))
    await asyncio.gather(*(run() for _ in range(CALLERS)))
    for job in (await jobs.list(tenant, status=JobStatus.QUEUED)).items[:PAGE]:
        await jobs.cancel(tenant, job.id)
    await jobs.claim("worker", [TYPE], limit=RUNNING)
    return sorted(times)[len(times) // 2]


def new_order(tenant: str, n: int) -> NewJob:
    """Return a job. A few have a rare type, source or tag, or a delay."""
    rare = n % RARE
    return new_job(
        tenant,
        "rare" if rare == 2 else TYPE,
        {"n": n},
        tags=["red"] if rare == 3 else [],
        source=Source.SCHEDULE if rare == 4 else Source.MANUAL,
        delay=86_400 if rare == 5 else 0,
    )


async def calls(jobs: Jobs, tenant: str, middle: datetime) -> dict[str, Callable[[], Awaitable[object]]]:
    """Return the measured calls by name."""
    (last_in_line,) = (await jobs.list(tenant, type=TYPE, status=JobStatus.QUEUED, limit=1)).items
    parent = await jobs.enqueue(tenant, TYPE)
    child = await jobs.enqueue(tenant, TYPE, after=[parent.job.id])
    (dead_job,) = (await jobs.list(tenant, status=JobStatus.DEAD, limit=1)).items
    cursor = None
    for _ in range(PAGES_DEEP):
        cursor = (await jobs.list(tenant, type=TYPE, created_before=middle, limit=200, cursor=cursor)).next_cursor
    filters: dict[str, dict[str, Any]] = {
        "all": {},
        **{f"status {status}": {"status": status} for status in JobStatus},
        "a type": {"type": TYPE},
        "a rare type": {"type": "rare"},
        "a tag": {"tag": "red"},
        "a source": {"source": Source.MANUAL},
        "a rare source": {"source": Source.SCHEDULE},
        "a time": {"created_before": middle},
        "a page far back": {"type": TYPE, "created_before": middle, "cursor": cursor, "limit": 200},
        "a type and a status": {"type": TYPE, "status": JobStatus.SUCCEEDED},
        "a tag and a status": {"tag": "red", "status": JobStatus.SUCCEEDED},
        "a time and a status": {"created_before": middle, "status": JobStatus.DEAD},
    }
    return {
        **{
            f"list: {name}": partial(jobs.list, tenant, **({"limit": PAGE} | options))
            for name, options in filters.items()
        },
        "counts": partial(jobs.counts, tenant),
        "summary": partial(jobs.summary, tenant),
        "explain: the last in line": partial(jobs.explain, tenant, last_in_line.id),
        "explain: waits for a parent": partial(jobs.explain, tenant, child.job.id),
        "explain: a dead job": partial(jobs.explain, tenant, dead_job.id),
    }


async def measure_call(name: str, call: Callable[[], Awaitable[object]]) -> CallLatency:
    """Run a call several times and return its median and worst duration."""
    milliseconds = []
    for _ in range(TIMES):
        began = time.perf_counter()
        await call()
        milliseconds.append(1000 * (time.perf_counter() - began))
    return CallLatency(call=name, median_ms=statistics.median(milliseconds), worst_ms=max(milliseconds))


if __name__ == "__main__":
    uvloop: Any = component("uvloop")
    print(msgspec.json.encode(uvloop.run(measure(msgspec.json.decode(sys.argv[1], type=RunRequest)))).decode())
