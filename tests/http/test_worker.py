"""The worker against a real server: results, logs, progress, cancellation and draining."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from ingot.api.ops import VERSION
from ingot.client import AsyncClient
from ingot.client.errors import JobCanceled, JobDead
from ingot.jobs.model import AttemptOutcome, JobStatus
from ingot.worker import NoRetry, Worker, WorkerJob
from tests.http.running_worker import running_worker
from tests.http.serving import Served, serving
from tests.worker_roles import serving_postgres, worker_role


@pytest.fixture(params=["http", "postgres"])
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Served]:
    """A server whose worker uses HTTP or the database."""
    if request.param == "http":
        async with serving(tmp_path / "data") as server:
            yield server
        return
    async with serving_postgres(tmp_path / "data") as server:
        yield server


@pytest.fixture
async def client(served: Served) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(served.url, token=served.operator) as opened_client:
        yield opened_client


async def test_handlers_return_results_and_logs(served: Served, client: AsyncClient) -> None:
    worker = Worker()

    @worker.handler("greet", concurrency=4)
    async def greet(job: WorkerJob) -> dict[str, str]:
        job.progress(50, "half")
        print("hello", job.payload["name"])
        return {"hello": job.payload["name"]}

    @worker.handler("add")
    def add(job: WorkerJob) -> int:
        print("adding", job.payload)
        return sum(job.payload)

    async with running_worker(served, worker):
        jobs = await client.submit_many("greet", [{"name": str(n)} for n in range(20)])
        added = await client.submit("add", [1, 2, 3])
        assert [(await job.wait("40s")).result["hello"] for job in jobs] == [str(n) for n in range(20)]
        assert (await added.wait("40s")).result == 6
        assert await added.log() == "adding [1, 2, 3]\n"
        assert await jobs[7].log() == "hello 7\n"
        (registered,) = [listed async for listed in client.workers()]
        assert (registered.id.partition("_")[0].partition("/")[0], registered.types) == ("press", ("add", "greet"))
        assert registered.version == VERSION
    assert [listed.status async for listed in client.workers()] in ([], ["offline"])


async def test_an_exception_of_a_handler_decides_the_end_of_the_job(served: Served, client: AsyncClient) -> None:
    worker = Worker()

    @worker.handler("odd")
    def odd(job: WorkerJob) -> object:
        match job.payload:
            case "no retry":
                raise NoRetry("never")
            case "snooze":
                job.snooze("1h")
            case "no json":
                return object()
            case "exit":
                raise SystemExit(3)
        raise ValueError(job.payload)

    async with running_worker(served, worker):
        for payload, error in [("no retry", "never"), ("no json", "JSON")]:
            with pytest.raises(JobDead, match=error):
                await (await client.submit("odd", payload)).wait("40s")
        snoozed = await client.submit("odd", "snooze")
        for payload, error in [("out of paper", "ValueError: out of paper"), ("exit", "SystemExit: 3")]:
            failed = await client.submit("odd", payload, max_attempts=1)
            with pytest.raises(JobDead, match=error):
                await failed.wait("40s")
            assert "Traceback" in await failed.log()
        await snoozed.refresh()
        assert (snoozed.status, snoozed.data.failures) == (JobStatus.QUEUED, 0)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_cancel_reaches_the_handler_at_once(
    served: Served, client: AsyncClient, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancel ends a waiting heartbeat that was sent before the job started."""
    monkeypatch.setattr("ingot.worker.heartbeat.WAIT_SECONDS", 60.0)
    worker, started = Worker(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def sleep(job: WorkerJob) -> None:
        started.set()
        await asyncio.sleep(60)

    def wait(job: WorkerJob) -> None:
        loop.call_soon_threadsafe(started.set)
        assert job.wait(60)
        job.check()

    worker.handler("long")(sleep if kind == "async" else wait)
    async with running_worker(served, worker):
        job = await client.submit("long")
        await started.wait()
        await job.cancel()
        with pytest.raises(JobCanceled):
            await job.wait("40s")
        assert [attempt.outcome for attempt in await job.attempts()] == [AttemptOutcome.CANCELED]


async def test_a_handler_that_blocks_the_loop_keeps_its_lease(served: Served, client: AsyncClient) -> None:
    worker = Worker()

    @worker.handler("blocking")
    async def blocking(job: WorkerJob) -> str:
        job.progress(10)
        time.sleep(1.5)  # noqa: ASYNC251 - it blocks on purpose
        return "done"

    async with running_worker(served, worker):
        job = await client.submit("blocking")
        assert (await job.wait("40s")).result == "done"
        assert job.data.crashes == 0


async def test_a_worker_does_not_claim_more_while_many_jobs_are_unsettled(
    served: Served, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would hold more jobs than one heartbeat can name."""
    monkeypatch.setattr("ingot.worker.runner.SETTLE_BATCH_MAX", 1)
    monkeypatch.setattr("ingot.worker.runner.UNSETTLED_MAX", 5)
    worker, most_running, tenant = Worker(), [0], served.ingot.default_tenant.id

    @worker.handler("quick", concurrency=10)
    async def quick(job: WorkerJob) -> None:
        most_running[0] = max(most_running[0], (await served.ingot.jobs.summary(tenant)).running)

    jobs = await client.submit_many("quick", [None] * 200)
    async with running_worker(served, worker):
        for job in jobs:
            await job.wait("40s")
    assert 0 < most_running[0] <= 30


async def test_many_short_jobs_cause_few_heartbeats(
    served: Served, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that are settled while a heartbeat is on its way are reported as lost, which must not cause another."""
    monkeypatch.setattr("ingot.worker.heartbeat.WAIT_SECONDS", 0.3)
    monkeypatch.setattr("ingot.worker.heartbeat.UPDATE_SECONDS", 60.0)
    worker, last = Worker(), asyncio.Event()

    @worker.handler("short", concurrency=20)
    async def short(job: WorkerJob) -> None:
        if job.payload == 2000 - 1:
            last.set()

    await client.submit_many("short", range(2000))
    started = time.monotonic()
    async with running_worker(served, worker):
        await last.wait()
        headers = {"authorization": f"Bearer {served.operator}"}
        async with httpx.AsyncClient(base_url=served.url, headers=headers, verify=False) as metrics_client:
            metrics = (await metrics_client.get("/metrics")).text.splitlines()
        seconds = time.monotonic() - started
    heartbeats = sum(float(line.split()[-1]) for line in metrics if "_requests_total{" in line and "/heartbeat" in line)
    assert heartbeats <= seconds / 0.3 + 1, "each waits to its end, except the first that reports a loss"


async def test_a_long_log_of_one_job_does_not_release_another_job(served: Served, client: AsyncClient) -> None:
    """The server releases jobs that a heartbeat omits, so that every heartbeat has to name all jobs of the worker."""
    worker, done = Worker(), asyncio.Event()

    @worker.handler("long")
    async def long(job: WorkerJob) -> int:
        job.progress(1)
        await done.wait()
        return job.attempt

    @worker.handler("chatty")
    async def chatty(job: WorkerJob) -> None:
        print("x" * 100_000)

    async with running_worker(served, worker):
        long_job = await client.submit("long")
        async for current in long_job.watch():
            if current.progress is not None:
                break
        # Every later heartbeat has to name the job: with no grace period, one that omits it would release it.
        served.ingot.workers.grace_seconds = 0.0
        chatty_job = await (await client.submit("chatty")).wait("40s")
        assert len(await chatty_job.log()) >= 65_000
        done.set()
        assert (await long_job.wait("40s")).result == 1


async def test_a_stopping_worker_finishes_or_releases_its_jobs(served: Served, client: AsyncClient) -> None:
    worker, started, resume = Worker(), asyncio.Event(), asyncio.Event()

    @worker.handler("short")
    async def short(job: WorkerJob) -> str:
        started.set()
        await resume.wait()
        return "done"

    @worker.handler("endless")
    async def endless(job: WorkerJob) -> None:
        await asyncio.sleep(600)

    async with running_worker(served, worker, drain_seconds=1.0):
        finished, released = await client.submit("short"), await client.submit("endless")
        await started.wait()
        async for current in released.watch():
            if current.status is JobStatus.RUNNING:
                break
        resume.set()  # Nothing is awaited before the worker stops, so the handler resumes during the drain.
    assert (await finished.refresh()).result == "done"
    await released.refresh()
    assert (released.status, released.data.failures, released.data.crashes) == (JobStatus.QUEUED, 0, 0)


@pytest.mark.postgres
async def test_a_token_cannot_use_the_worker_id_of_a_database_role(tmp_path: Path) -> None:
    async with serving_postgres(tmp_path / "data") as served:
        assert served.database is not None
        async with worker_role(served.database, served.ingot.default_tenant.id) as url:
            name = f"{url.split('://')[1].partition(':')[0]}/1"
            headers = {"authorization": f"Bearer {served.operator}"}
            async with httpx.AsyncClient(base_url=f"{served.url}/api/v1", headers=headers, verify=False) as http:
                registered = await http.post("/workers", json={"id": name, "types": ["greet"]})
                claimed = await http.post("/jobs/claim", json={"worker_id": name, "types": ["greet"]})
            assert (registered.status_code, claimed.status_code) == (403, 403)
