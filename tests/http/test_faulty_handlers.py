"""The worker, against a real server: what handlers do wrong costs nobody else anything."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ingot.client import AsyncClient
from ingot.client.errors import JobDead
from ingot.client.server_address import ServerAddress
from ingot.identity.credentials import Unauthorized
from ingot.jobs.model import JobStatus, Release
from ingot.kernel.clock import SystemClock
from ingot.settings import Settings
from ingot.worker import NoRetry, Worker, WorkerJob
from ingot.worker.http_job_source import HttpJobSource
from ingot.worker.runner import Runner
from tests.http.running_worker import working
from tests.http.serving import Served, serving
from tests.waiting import SECONDS_MAX, eventually


@pytest.fixture
async def client(served: Served) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(served.url, token=served.operator) as one:
        yield one


async def test_the_figures_tell_how_many_workers_are_there(served: Served) -> None:
    worker = Worker()
    worker.handler("idle")(print)
    headers = {"authorization": f"Bearer {served.operator}"}

    async def is_told(workers: int) -> bool:
        told = (await served.client.get("/metrics", headers=headers)).text
        return f"ingot_worker_heartbeats_waiting {workers}.0" in told

    async with working(served, worker), asyncio.timeout(30):
        while not await is_told(1):
            pass
    assert await is_told(0)


class Elsewhere(SystemClock):
    """A clock that is some seconds ahead of ours, or behind."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._offset += round(seconds * 1e9)


@pytest.mark.parametrize("ahead", [3600, -3600])
async def test_a_worker_does_not_care_what_time_it_is_at_the_server(tmp_path: Path, ahead: float) -> None:
    worker = Worker()

    @worker.handler("slow")
    async def slow(job: WorkerJob) -> int:
        async def is_renewed() -> bool:
            now = await served.ingot.jobs.get(job.data.tenant, job.id)
            return now.lease_expires_at != job.data.lease_expires_at

        await eventually(is_renewed)
        return job.attempt

    async with (
        serving(tmp_path / "data", Settings(lease_seconds=30.0), clock=Elsewhere(ahead)) as served,
        AsyncClient(served.url, token=served.operator) as client,
        working(served, worker),
    ):
        job = await (await client.submit("slow")).wait("40s")
        assert (job.result, job.data.crashes) == (1, 0)


async def test_a_job_that_comes_again_before_it_is_known_to_be_lost_is_another_run(
    served: Served, client: AsyncClient
) -> None:
    """What becomes of the old run, and what is said of it, does not touch the new one."""
    worker, runs = Worker(), 0

    async def reaches_the_server(job: WorkerJob, percent: int) -> None:
        async def is_there() -> bool:
            progress = (await served.ingot.jobs.get(job.data.tenant, job.id)).progress
            return progress is not None and progress.percent == percent

        job.progress(percent)  # That is news, and makes for a heartbeat.
        await eventually(is_there)

    @worker.handler("twice", concurrency=2)
    async def twice(job: WorkerJob) -> int:
        nonlocal runs
        runs += 1
        if job.attempt == 1:
            held = served.ingot.jobs
            await held.settle(job.id, job.data.fence, Release())  # Somebody took us for gone.
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.3)
        await reaches_the_server(job, 10)  # No heartbeat from before this run is under way any more.
        served.ingot.workers.grace_seconds = 0.0  # A heartbeat that does not name this run would give it back.
        await reaches_the_server(job, 20)
        await reaches_the_server(job, 30)
        return job.attempt

    async with working(served, worker, drain_seconds=1.0):
        job = await (await client.submit("twice")).wait("40s")
        assert (job.result, runs) == (2, 2)
        assert (job.data.attempts, job.data.crashes, job.data.failures) == (2, 0, 0)


async def test_a_handler_that_overruns_keeps_its_place_until_it_ends(served: Served, client: AsyncClient) -> None:
    worker, at_once, most = Worker(), 0, 0

    @worker.handler("overrun", timeout="200ms")
    def overrun(job: WorkerJob) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        time.sleep(0.6)
        at_once -= 1

    worker.handler("other")(print)  # It has a thread too, which is not for this.
    async with working(served, worker):
        for job in await client.submit_many("overrun", range(3), max_attempts=1):
            with pytest.raises(JobDead, match=r"longer than 0\.2 seconds"):
                await job.wait("40s")
    assert most == 1


async def test_words_that_are_no_text_cost_nobody_anything(served: Served, client: AsyncClient) -> None:
    worker = Worker()

    @worker.handler("names", concurrency=2)
    async def names(job: WorkerJob) -> str:
        print("caf\udce9")
        job.progress(50, "caf\udce9" * 100)
        raise ValueError("caf\udce9")

    async with working(served, worker, drain_seconds=1.0):
        job = await client.submit("names", max_attempts=1)
        with pytest.raises(JobDead, match=r"ValueError: caf\?"):
            await job.wait("40s")
        assert (await job.log()).startswith("caf?\n")


async def test_who_is_told_to_go_waits_for_no_server_that_does_not_answer() -> None:
    worker = Worker()
    worker.handler("idle")(print)
    stopping, connected = asyncio.Event(), asyncio.Event()

    async def keep_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(keep_silent, "127.0.0.1", 0) as server, asyncio.timeout(30):
        place = ServerAddress(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", headers={})
        running = asyncio.create_task(Runner(worker, lambda: HttpJobSource(place, "press")).run(stopping))
        await connected.wait()
        stopping.set()
        await running


async def test_what_a_handler_raises_when_a_drain_stops_it_is_no_failure(served: Served, client: AsyncClient) -> None:
    worker = Worker()

    @worker.handler("count")
    def count(job: WorkerJob) -> None:
        if job.wait("40s"):
            raise NoRetry("told to stop")

    async with working(served, worker, drain_seconds=0):
        job = await client.submit("count")
        async for now in job.watch():
            if now.status is JobStatus.RUNNING:
                break
    assert ((await job.refresh()).status, job.data.failures) == (JobStatus.QUEUED, 0)


@pytest.mark.parametrize(("looks", "status"), [(True, JobStatus.QUEUED), (False, JobStatus.SUCCEEDED)])
async def test_what_breaks_off_for_a_drain_is_not_done(
    served: Served, client: AsyncClient, looks: bool, status: JobStatus
) -> None:
    worker, begun, leaving = Worker(), threading.Event(), threading.Event()

    @worker.handler("sum")
    def sum_up(job: WorkerJob) -> int:
        begun.set()
        assert leaving.wait(SECONDS_MAX)
        return 1 if looks and job.wait("40s") else 2

    async with working(served, worker, drain_seconds=0):
        job = await client.submit("sum")
        assert await asyncio.to_thread(begun.wait, SECONDS_MAX)
        asyncio.get_running_loop().call_later(0.3, leaving.set)  # That the drain has begun by then.
    assert (await job.refresh()).status is status


async def test_a_result_that_is_too_large_fails_the_job(served: Served, client: AsyncClient) -> None:
    worker = Worker()

    @worker.handler("large")
    async def large(job: WorkerJob) -> str:
        return "x" * 70_000

    async with working(served, worker):
        with pytest.raises(JobDead, match="70002"):
            await (await client.submit("large")).wait("40s")


async def test_a_worker_whose_credential_is_taken_away_stops_and_goes(served: Served, client: AsyncClient) -> None:
    worker, stopped = Worker(), asyncio.Event()

    @worker.handler("long")
    async def long(job: WorkerJob) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    job = await client.submit("long")

    async def work() -> None:
        async with working(served, worker, drain_seconds=0.0):
            async for now in job.watch():
                if now.status is JobStatus.RUNNING:
                    break
            disabled = await served.call("POST", "/admin/workers/press/disable")
            assert disabled.status_code == 200
            async with asyncio.timeout(30):
                await stopped.wait()

    with pytest.raises(Unauthorized, match="disabled"):
        await work()
    await job.refresh()
    assert (job.status, job.data.crashes) == (JobStatus.QUEUED, 0)
