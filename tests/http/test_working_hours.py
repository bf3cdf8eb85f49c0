"""Working hours: outside of them a worker claims nothing, stays online, and finishes running jobs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, ClassVar

from ingot.client import AsyncClient
from ingot.client.asynchronous.job import AsyncJob
from ingot.client.server_address import resolve_server_address
from ingot.jobs.model import JobStatus
from ingot.kernel.clock import ManualClock
from ingot.worker import Worker, WorkerJob
from ingot.worker.hours import parse_hours
from ingot.worker.http_job_source import HttpJobSource
from ingot.worker.ports import ClaimedJob
from ingot.worker.runner import Runner
from tests.http.serving import Served
from tests.waiting import eventually

JOBS = 12


class CountingJobSource(HttpJobSource):
    """A job source that counts its waiting claims."""

    claims: ClassVar[Counter[str]] = Counter()

    async def claim(self, type: str, *, limit: int, wait_seconds: float) -> list[ClaimedJob]:
        self.claims[self._worker_id] += 1
        try:
            return await super().claim(type, limit=limit, wait_seconds=wait_seconds)
        finally:
            self.claims[self._worker_id] -= 1


@asynccontextmanager
async def running_worker(served: Served, name: str, worker: Worker, **options: Any) -> AsyncIterator[None]:
    address = resolve_server_address(served.url, token=served.operator)
    stopping = asyncio.Event()
    running = asyncio.create_task(Runner(worker, lambda: CountingJobSource(address, name), **options).run(stopping))
    try:
        yield
    finally:
        stopping.set()
        await running


async def workers_of(jobs: list[AsyncJob]) -> set[str]:
    return {(await (await job.wait("40s")).attempts())[-1].worker_id for job in jobs}


async def test_a_worker_claims_jobs_only_in_its_working_hours(served: Served) -> None:
    worker, started, resume = Worker(), asyncio.Event(), asyncio.Event()

    @worker.handler("greet", concurrency=8)
    async def greet(job: WorkerJob) -> str:
        return "Hello"

    @worker.handler("long")
    async def long(job: WorkerJob) -> str:
        started.set()
        await resume.wait()
        return "done"

    clock = ManualClock(datetime(2026, 6, 1, 12, tzinfo=UTC))
    night = running_worker(served, "night", worker, hours=parse_hours("22:00-06:00", "UTC"), clock=clock)
    async with AsyncClient(served.url, token=served.operator) as client, night:
        async with running_worker(served, "day", worker):
            assert await workers_of(await client.submit_many("greet", [None] * JOBS)) == {"day"}
        clock.advance(seconds=10 * 3600)
        assert await workers_of(await client.submit_many("greet", [None] * JOBS)) == {"night"}
        long_job = await client.submit("long")
        await started.wait()
        clock.advance(seconds=8 * 3600 - 1)  # A second before six: claims that wait now end at six.
        assert await workers_of([await client.submit("greet")]) == {"night"}
        clock.advance(seconds=1)
        listed = {listed.id: listed.status async for listed in client.workers()}
        assert listed["night"] == "online"
        await eventually(lambda: not CountingJobSource.claims["night"])
        async with running_worker(served, "day", worker):
            assert await workers_of(await client.submit_many("greet", [None] * JOBS)) == {"day"}
        assert (await long_job.refresh()).status is JobStatus.RUNNING
        resume.set()
        assert (await long_job.wait("40s")).result == "done"
