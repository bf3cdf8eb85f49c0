"""The worker against a real server: faulty handlers and servers affect no other job."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ingot.client import AsyncClient
from ingot.client.errors import JobDead
from ingot.client.server_address import ServerAddress, resolve_server_address
from ingot.identity.credentials import Unauthorized
from ingot.jobs.model import AttemptOutcome, Job, JobStatus, Release
from ingot.kernel.clock import SystemClock
from ingot.settings import Settings
from ingot.worker import NoRetry, Worker, WorkerJob
from ingot.worker.http_job_source import HttpJobSource
from ingot.worker.runner import Runner
from tests.http.dead_connections import connections_that_go_dead
from tests.http.running_worker import running_worker
from tests.http.serving import Served, serving
from tests.waiting import SECONDS_MAX, eventually


@pytest.fixture
async def client(served: Served) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(served.url, token=served.operator) as opened_client:
        yield opened_client


async def test_a_metric_counts_waiting_worker_heartbeats(served: Served) -> None:
    worker = Worker()
    worker.handler("idle")(print)
    headers = {"authorization": f"Bearer {served.operator}"}

    async def is_counted(workers: int) -> bool:
        metrics = (await served.client.get("/metrics", headers=headers)).text
        return f"ingot_worker_heartbeats_waiting {workers}.0" in metrics

    async with running_worker(served, worker), asyncio.timeout(30):
        while not await is_counted(1):
            pass
    assert await is_counted(0)


class ShiftedClock(SystemClock):
    """A clock that is some seconds ahead or behind."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._offset += round(seconds * 1e9)


@pytest.mark.parametrize("ahead", [3600, -3600])
async def test_a_worker_keeps_its_lease_when_the_clock_of_the_server_differs(tmp_path: Path, ahead: float) -> None:
    worker = Worker()

    @worker.handler("slow")
    async def slow(job: WorkerJob) -> int:
        async def is_renewed() -> bool:
            current = await served.ingot.jobs.get(job.data.tenant, job.id)
            return current.lease_expires_at != job.data.lease_expires_at

        await eventually(is_renewed)
        return job.attempt

    async with (
        serving(tmp_path / "data", Settings(lease_seconds=30.0), clock=ShiftedClock(ahead)) as served,
        AsyncClient(served.url, token=served.operator) as client,
        running_worker(served, worker),
    ):
        job = await (await client.submit("slow")).wait("40s")
        assert (job.result, job.data.crashes) == (1, 0)


async def test_a_worker_whose_connections_go_dead_keeps_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It repeats its heartbeat over a new connection long before the lease expires."""
    monkeypatch.setattr("ingot.worker.http_job_source.HEARTBEAT_RESPONSE_SECONDS", 0.2)
    worker, stopping = Worker(), asyncio.Event()

    @worker.handler("long")
    async def long(job: WorkerJob) -> None:
        await asyncio.sleep(60)

    async with (
        serving(tmp_path / "data", Settings(lease_seconds=4.0)) as served,
        connections_that_go_dead(served.url) as proxy,
    ):
        created = await served.ingot.credentials.create_worker_credential(served.ingot.default_tenant.id, "press")
        address = resolve_server_address(proxy.url, worker=("press/1", created.secret))
        runner = Runner(worker, lambda: HttpJobSource(address, "press/1"), drain_seconds=0)
        running = asyncio.create_task(runner.run(stopping))
        tenant, job = served.ingot.default_tenant.id, (await served.make_job(type="long"))["id"]

        async def current() -> Job:
            return await served.ingot.jobs.get(tenant, job)

        async def has_lease_after(expires_at: datetime | None) -> bool:
            return (await current()).lease_expires_at != expires_at

        await eventually(lambda: has_lease_after(None))
        proxy.go_dead()
        for _ in range(2):  # The first heartbeat may have reached the server before.
            last_lease = (await current()).lease_expires_at
            await eventually(partial(has_lease_after, last_lease), why="the lease is renewed or lost")
        after = await current()
        assert (after.status, after.attempts, after.crashes) == (JobStatus.RUNNING, 1, 0)
        proxy.close()
        stopping.set()
        await running


async def test_a_second_run_of_a_job_is_independent_of_the_first_run_in_the_same_worker(
    served: Served, client: AsyncClient
) -> None:
    """The end of the old run and heartbeats about it do not affect the new run."""
    worker, runs = Worker(), 0

    async def reaches_the_server(job: WorkerJob, percent: int) -> None:
        async def is_stored() -> bool:
            progress = (await served.ingot.jobs.get(job.data.tenant, job.id)).progress
            return progress is not None and progress.percent == percent

        job.progress(percent)  # Progress causes a heartbeat.
        await eventually(is_stored)

    @worker.handler("twice", concurrency=2)
    async def twice(job: WorkerJob) -> int:
        nonlocal runs
        runs += 1
        if job.attempt == 1:
            # The test releases the job without notice to the worker, as if its connection had been lost.
            await served.ingot.jobs.settle(job.id, job.data.fence, Release())
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.3)
        await reaches_the_server(job, 10)  # No heartbeat from before this run is still on its way.
        served.ingot.workers.grace_seconds = 0.0  # A heartbeat that omits this run would release it.
        await reaches_the_server(job, 20)
        await reaches_the_server(job, 30)
        return job.attempt

    async with running_worker(served, worker, drain_seconds=1.0):
        job = await (await client.submit("twice")).wait("40s")
        assert (job.result, runs) == (2, 2)
        assert (job.data.attempts, job.data.crashes, job.data.failures) == (2, 0, 0)


async def test_a_handler_that_exceeds_its_timeout_keeps_its_slot_until_it_returns(
    served: Served, client: AsyncClient
) -> None:
    worker, running, most = Worker(), 0, 0

    @worker.handler("overrun", timeout="200ms")
    def overrun(job: WorkerJob) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.6)
        running -= 1

    worker.handler("other")(print)  # Its thread must not be used for the first type.
    with capture_logs() as logs:
        async with running_worker(served, worker):
            for job in await client.submit_many("overrun", range(3), max_attempts=1):
                with pytest.raises(JobDead, match=r"longer than 0\.2 seconds"):
                    await job.wait("40s")
                assert [attempt.outcome for attempt in await job.attempts()] == [AttemptOutcome.TIMED_OUT]
    assert most == 1
    ends = [(entry["event"], entry["outcome"]) for entry in logs if "outcome" in entry]
    assert ends == [("job_dead", "timed_out")] * 3
    assert not [entry for entry in logs if entry["event"] == "handler_still_running"], "it returned soon afterwards"


async def test_a_handler_that_does_not_end_after_its_timeout_is_logged(served: Served, client: AsyncClient) -> None:
    worker, end = Worker(), threading.Event()
    worker.handler("stuck", timeout="200ms")(lambda _: end.wait())
    with capture_logs() as logs:
        async with running_worker(served, worker):
            job = await client.submit("stuck", max_attempts=1)
            await eventually(lambda: any(entry["event"] == "handler_still_running" for entry in logs))
            end.set()
    (entry,) = [entry for entry in logs if entry["event"] == "handler_still_running"]
    assert (entry["job_id"], entry["job_type"]) == (job.id, "stuck")


async def test_output_that_is_not_valid_unicode_is_stored_with_replacements(
    served: Served, client: AsyncClient
) -> None:
    worker = Worker()

    @worker.handler("names", concurrency=2)
    async def names(job: WorkerJob) -> str:
        print("caf\udce9")
        job.progress(50, "caf\udce9" * 100)
        raise ValueError("caf\udce9")

    async with running_worker(served, worker, drain_seconds=1.0):
        job = await client.submit("names", max_attempts=1)
        with pytest.raises(JobDead, match=r"ValueError: caf\?"):
            await job.wait("40s")
        assert (await job.log()).startswith("caf?\n")


async def test_a_stopping_worker_does_not_wait_for_a_silent_server() -> None:
    worker = Worker()
    worker.handler("idle")(print)
    stopping, connected = asyncio.Event(), asyncio.Event()

    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(stay_silent, "127.0.0.1", 0) as server, asyncio.timeout(30):
        address = ServerAddress(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", headers={})
        running = asyncio.create_task(Runner(worker, lambda: HttpJobSource(address, "press")).run(stopping))
        await connected.wait()
        stopping.set()
        await running


async def test_an_error_after_a_drain_interrupted_the_handler_is_not_a_failure(
    served: Served, client: AsyncClient
) -> None:
    worker = Worker()

    @worker.handler("count")
    def count(job: WorkerJob) -> None:
        if job.wait("40s"):
            raise NoRetry("interrupted")

    async with running_worker(served, worker, drain_seconds=0):
        job = await client.submit("count")
        async for current in job.watch():
            if current.status is JobStatus.RUNNING:
                break
    assert ((await job.refresh()).status, job.data.failures) == (JobStatus.QUEUED, 0)


@pytest.mark.parametrize(("notices", "status"), [(True, JobStatus.QUEUED), (False, JobStatus.SUCCEEDED)])
async def test_a_handler_that_noticed_the_drain_is_released_and_another_one_succeeds(
    served: Served, client: AsyncClient, notices: bool, status: JobStatus
) -> None:
    worker, started, leaving = Worker(), threading.Event(), threading.Event()

    @worker.handler("sum")
    def sum_up(job: WorkerJob) -> int:
        started.set()
        assert leaving.wait(SECONDS_MAX)
        return 1 if notices and job.wait("40s") else 2

    async with running_worker(served, worker, drain_seconds=0):
        job = await client.submit("sum")
        assert await asyncio.to_thread(started.wait, SECONDS_MAX)
        asyncio.get_running_loop().call_later(0.3, leaving.set)  # By then the drain has begun.
    assert (await job.refresh()).status is status


async def test_a_result_that_is_too_large_fails_the_job(served: Served, client: AsyncClient) -> None:
    worker = Worker()

    @worker.handler("large")
    async def large(job: WorkerJob) -> str:
        return "x" * 70_000

    async with running_worker(served, worker):
        with pytest.raises(JobDead, match="70002"):
            await (await client.submit("large")).wait("40s")


async def test_a_worker_whose_credential_is_disabled_stops_its_jobs_and_exits(
    served: Served, client: AsyncClient
) -> None:
    worker, stopped = Worker(), asyncio.Event()

    @worker.handler("long")
    async def long(job: WorkerJob) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    job = await client.submit("long")

    async def work() -> None:
        async with running_worker(served, worker, drain_seconds=0.0):
            async for current in job.watch():
                if current.status is JobStatus.RUNNING:
                    break
            disabled = await served.call("POST", "/admin/workers/press/disable")
            assert disabled.status_code == 200
            async with asyncio.timeout(30):
                await stopped.wait()

    with pytest.raises(Unauthorized, match="disabled"):
        await work()
    await job.refresh()
    assert (job.status, job.data.crashes) == (JobStatus.QUEUED, 0)
