"""The worker, against a real server: handlers run, and what they say and do is known there."""

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
from ingot.jobs.model import JobStatus
from ingot.worker import NoRetry, Worker, WorkerJob
from tests.http.running_worker import working
from tests.http.serving import Served, serving
from tests.worker_roles import serving_postgres, worker_role


@pytest.fixture(params=["http", "postgres"])
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Served]:
    """A server; the worker comes to it over HTTP, or to its database."""
    if request.param == "http":
        async with serving(tmp_path / "data") as one:
            yield one
        return
    async with serving_postgres(tmp_path / "data") as one:
        yield one


@pytest.fixture
async def client(served: Served) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(served.url, token=served.operator) as one:
        yield one


async def test_handlers_run_and_answer(served: Served, client: AsyncClient) -> None:
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

    async with working(served, worker):
        jobs = await client.submit_many("greet", [{"name": str(n)} for n in range(20)])
        added = await client.submit("add", [1, 2, 3])
        assert [(await job.wait("40s")).result["hello"] for job in jobs] == [str(n) for n in range(20)]
        assert (await added.wait("40s")).result == 6
        assert await added.log() == "adding [1, 2, 3]\n"
        assert await jobs[7].log() == "hello 7\n"
        (known,) = [one async for one in client.workers()]
        assert (known.id.partition("_")[0].partition("/")[0], known.types) == ("press", ("add", "greet"))
        assert known.version == VERSION
    assert [one.status async for one in client.workers()] in ([], ["offline"])


async def test_what_a_handler_raises_is_what_became_of_the_job(served: Served, client: AsyncClient) -> None:
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

    async with working(served, worker):
        for said, error in [("no retry", "never"), ("no json", "JSON")]:
            with pytest.raises(JobDead, match=error):
                await (await client.submit("odd", said)).wait("40s")
        snoozed = await client.submit("odd", "snooze")
        for said, error in [("out of paper", "ValueError: out of paper"), ("exit", "SystemExit: 3")]:
            failed = await client.submit("odd", said, max_attempts=1)
            with pytest.raises(JobDead, match=error):
                await failed.wait("40s")
            assert "Traceback" in await failed.log()
        await snoozed.refresh()
        assert (snoozed.status, snoozed.data.failures) == (JobStatus.QUEUED, 0)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_cancel_reaches_the_handler(
    served: Served, client: AsyncClient, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the job began after the heartbeat that waits, which is not over for a minute."""
    monkeypatch.setattr("ingot.worker.heartbeat.WAIT_SECONDS", 60.0)
    worker, began = Worker(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def sleep(job: WorkerJob) -> None:
        began.set()
        await asyncio.sleep(60)

    def wait(job: WorkerJob) -> None:
        loop.call_soon_threadsafe(began.set)
        assert job.wait(60)
        job.check()

    worker.handler("long")(sleep if kind == "async" else wait)
    async with working(served, worker):
        job = await client.submit("long")
        await began.wait()
        await job.cancel()
        with pytest.raises(JobCanceled):
            await job.wait("40s")


async def test_a_handler_that_blocks_the_loop_keeps_its_lease(served: Served, client: AsyncClient) -> None:
    worker = Worker()

    @worker.handler("rude")
    async def rude(job: WorkerJob) -> str:
        job.progress(10)
        time.sleep(1.5)  # noqa: ASYNC251 - that is what is rude
        return "done"

    async with working(served, worker):
        job = await client.submit("rude")
        assert (await job.wait("40s")).result == "done"
        assert job.data.crashes == 0


async def test_claims_do_not_outrun_what_is_told(
    served: Served, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a worker holds more than one heartbeat can name."""
    monkeypatch.setattr("ingot.worker.runner.SETTLE_BATCH_MAX", 1)
    monkeypatch.setattr("ingot.worker.runner.UNSETTLED_MAX", 5)
    worker, held, tenant = Worker(), [0], served.ingot.default_tenant.id

    @worker.handler("quick", concurrency=10)
    async def quick(job: WorkerJob) -> None:
        held[0] = max(held[0], (await served.ingot.jobs.summary(tenant)).running)

    jobs = await client.submit_many("quick", [None] * 200)
    async with working(served, worker):
        for job in jobs:
            await job.wait("40s")
    assert 0 < held[0] <= 30


async def test_many_short_jobs_make_few_heartbeats(
    served: Served, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a heartbeat names is settled while it is on its way, and told to be lost: no reason for the next at once."""
    monkeypatch.setattr("ingot.worker.heartbeat.WAIT_SECONDS", 0.3)
    monkeypatch.setattr("ingot.worker.heartbeat.UPDATE_SECONDS", 60.0)
    worker, last = Worker(), asyncio.Event()

    @worker.handler("short", concurrency=20)
    async def short(job: WorkerJob) -> None:
        if job.payload == 2000 - 1:
            last.set()

    await client.submit_many("short", range(2000))
    began = time.monotonic()
    async with working(served, worker):
        await last.wait()
        headers = {"authorization": f"Bearer {served.operator}"}
        async with httpx.AsyncClient(base_url=served.url, headers=headers, verify=False) as looking:
            told = (await looking.get("/metrics")).text.splitlines()
        seconds = time.monotonic() - began
    beats = sum(float(line.split()[-1]) for line in told if "_requests_total{" in line and "/heartbeat" in line)
    assert beats <= seconds / 0.3 + 1, "each waits to its end, but for the first that tells of a loss"


async def test_the_last_words_of_one_job_cost_another_nothing(served: Served, client: AsyncClient) -> None:
    """What a heartbeat does not name is given back: each names all that the worker holds."""
    worker, done = Worker(), asyncio.Event()

    @worker.handler("long")
    async def long(job: WorkerJob) -> int:
        job.progress(1)
        await done.wait()
        return job.attempt

    @worker.handler("chatty")
    async def chatty(job: WorkerJob) -> None:
        print("x" * 100_000)

    async with working(served, worker):
        held = await client.submit("long")
        async for now in held.watch():
            if now.progress is not None:
                break
        # The job is named now, and no heartbeat from before is under way: one that does not name it gives it back.
        served.ingot.workers.grace_seconds = 0.0
        said = await (await client.submit("chatty")).wait("40s")
        assert len(await said.log()) >= 65_000
        done.set()
        assert (await held.wait("40s")).result == 1


async def test_who_is_told_to_go_finishes_or_gives_back(served: Served, client: AsyncClient) -> None:
    worker, began, go_on = Worker(), asyncio.Event(), asyncio.Event()

    @worker.handler("short")
    async def short(job: WorkerJob) -> str:
        began.set()
        await go_on.wait()
        return "done"

    @worker.handler("endless")
    async def endless(job: WorkerJob) -> None:
        await asyncio.sleep(600)

    async with working(served, worker, drain_seconds=1.0):
        finished, given_back = await client.submit("short"), await client.submit("endless")
        await began.wait()
        async for now in given_back.watch():
            if now.status is JobStatus.RUNNING:
                break
        go_on.set()  # The handler goes on when the worker has been told to go: nothing is awaited in between.
    assert (await finished.refresh()).result == "done"
    await given_back.refresh()
    assert (given_back.status, given_back.data.failures, given_back.data.crashes) == (JobStatus.QUEUED, 0, 0)


@pytest.mark.postgres
async def test_a_token_does_not_speak_as_the_role_of_a_worker(tmp_path: Path) -> None:
    async with serving_postgres(tmp_path / "data") as served:
        assert served.database is not None
        async with worker_role(served.database, served.ingot.default_tenant.id) as url:
            name = f"{url.split('://')[1].partition(':')[0]}/1"
            headers = {"authorization": f"Bearer {served.operator}"}
            async with httpx.AsyncClient(base_url=f"{served.url}/api/v1", headers=headers, verify=False) as http:
                registered = await http.post("/workers", json={"id": name, "types": ["greet"]})
                claimed = await http.post("/jobs/claim", json={"worker_id": name, "types": ["greet"]})
            assert (registered.status_code, claimed.status_code) == (403, 403)
