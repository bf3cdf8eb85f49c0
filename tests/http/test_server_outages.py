"""What a worker logs while its server is unavailable."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from structlog.testing import capture_logs

from ingot.client import AsyncClient
from ingot.client.errors import ServerUnreachable
from ingot.client.server_address import resolve_server_address
from ingot.wire.workers import JobHeartbeat, WorkerHeartbeatResponse
from ingot.worker import Worker, WorkerJob
from ingot.worker.http_job_source import HttpJobSource
from ingot.worker.ports import ClaimedJob
from ingot.worker.runner import Runner
from tests.http.serving import Served
from tests.waiting import eventually


class InterruptedJobSource(HttpJobSource):
    """A job source with outages, in which requests fail and heartbeats without updates are retried for ever."""

    is_down: ClassVar[bool] = False
    failed_claims: ClassVar[int] = 0
    hanging_heartbeats: ClassVar[int] = 0
    failed_updates: ClassVar[int] = 0

    async def claim(self, type: str, *, limit: int, wait_seconds: float) -> list[ClaimedJob]:
        if self.is_down:
            InterruptedJobSource.failed_claims += 1
            raise ServerUnreachable
        return await super().claim(type, limit=limit, wait_seconds=min(wait_seconds, 0.05))

    async def heartbeat(self, heartbeats: Sequence[JobHeartbeat], *, wait_seconds: float) -> WorkerHeartbeatResponse:
        if self.is_down and not any(job.log for job in heartbeats):
            InterruptedJobSource.hanging_heartbeats += 1
            await asyncio.sleep(3600)
        if self.is_down:
            InterruptedJobSource.failed_updates += 1
            raise ServerUnreachable
        return await super().heartbeat(heartbeats, wait_seconds=min(wait_seconds, 0.05))


async def test_updates_during_an_outage_do_not_end_it(served: Served) -> None:
    worker, started, speak, done = Worker(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    @worker.handler("late")
    async def late(job: WorkerJob) -> None:
        started.set()
        await speak.wait()
        print("an update, which cancels the waiting heartbeat")
        await done.wait()

    for type in ("idle", "spare"):
        worker.handler(type)(print)
    address = resolve_server_address(served.url, token=served.operator)
    source, stopping = InterruptedJobSource, asyncio.Event()
    with capture_logs() as entries:
        running = asyncio.create_task(Runner(worker, lambda: source(address, "press")).run(stopping))
        async with AsyncClient(served.url, token=served.operator) as client:
            job = await client.submit("late")
            await started.wait()
            source.is_down = True
            await eventually(lambda: source.hanging_heartbeats >= 1 and source.failed_claims >= 4)
            speak.set()
            await eventually(lambda: source.failed_updates >= 2)
            source.is_down = False
            await eventually(lambda: "server_back" in [entry["event"] for entry in entries])
            done.set()
            await job.wait("40s")
        stopping.set()
        await running
    events = [entry["event"] for entry in entries]
    assert [event for event in events if event != "job_succeeded"] == ["server_lost", "server_back"]
