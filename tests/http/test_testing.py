"""`ingot.testing`: draining, time, errors, and isolation between servers."""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from ingot import AsyncClient, Client, NoRetry, Worker, WorkerJob, testing
from ingot.client.errors import NotInTime
from ingot.jobs.model import JobStatus
from ingot.kernel.errors import InvalidInput

worker = Worker()


@worker.handler("chain", concurrency=3)
def chain(job: WorkerJob) -> int:
    left: int = job.payload["left"]
    if left:
        with Client(job.payload["url"], token=job.payload["token"], tenant="default") as client:
            client.submit("chain", {**job.payload, "left": left - 1})
    return left


@worker.handler("fail")
async def fail(job: WorkerJob) -> None:
    if job.payload == "for good":
        raise NoRetry("never")
    raise ZeroDivisionError(job.payload)


@worker.handler("slow", timeout="200ms")
def slow(job: WorkerJob) -> None:
    job.wait("5s")


@worker.handler("stuck")
def stuck(job: WorkerJob) -> None:
    while not job.wait("20ms"):
        pass
    job.check()


@worker.handler("snooze")
def snooze(job: WorkerJob) -> None:
    job.snooze("0s")


@worker.handler("apart", isolate=True)
def apart(job: WorkerJob) -> None:
    raise ValueError("in its own process")


def test_an_error_while_stopping_a_template_leaves_no_server_and_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = subprocess.Popen.wait

    def fail_to_wait(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        wait(process, timeout)
        raise OSError("the process cannot be waited for")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with ExitStack() as running:
        ingot = running.enter_context(testing.start(worker))
        ingot.client.submit("apart", max_attempts=1)
        assert ingot.drain() == 1
        monkeypatch.setattr(subprocess.Popen, "wait", fail_to_wait)
        with pytest.raises(OSError, match="cannot be waited for"):
            running.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(ingot.url, verify=False)
    assert list(tmp_path.glob("ingot-testing-*")) == []


def test_a_drain_runs_jobs_that_its_jobs_submit() -> None:
    with testing.start(worker) as ingot:
        connection = {"url": ingot.url, "token": ingot.token}
        ingot.client.submit("chain", {**connection, "left": 7})
        ingot.client.submit("chain", {**connection, "left": 3})
        assert ingot.drain() == 8 + 4
        assert ingot.client.summary().counts[JobStatus.SUCCEEDED] == 12
        assert ingot.drain() == 0


def test_a_drain_runs_jobs_that_wait_for_others() -> None:
    with testing.start(worker) as ingot:
        first = ingot.client.submit("chain", {"left": 0})
        second = ingot.client.submit("chain", {"left": 0}, after=[first.id])
        assert (second.status, ingot.drain(), second.refresh().status) == ("blocked", 2, "succeeded")


def test_retries_run_as_the_clock_advances() -> None:
    with testing.start(worker, now=datetime(2030, 1, 1, tzinfo=UTC)) as ingot:
        job = ingot.client.submit("fail", "x", max_attempts=3)
        assert job.data.created_at == datetime(2030, 1, 1, tzinfo=UTC)
        ran = []
        for _ in range(5):
            ran.append(ingot.drain())
            ingot.clock.advance(hours=1)
        assert ran == [1, 1, 1, 0, 0]
        assert (job.refresh().status, job.data.failures) == ("dead", 3)
        assert "Traceback" in job.log()


@pytest.mark.parametrize(
    ("type", "payload", "raised", "text"),
    [
        ("fail", "x", ZeroDivisionError, "x"),
        ("fail", "for good", NoRetry, "never"),
        ("slow", None, testing.HandlerFailed, "longer than 0.2 seconds"),
        ("apart", None, testing.HandlerFailed, "in its own process"),
    ],
)
def test_a_drain_with_raise_errors_raises_the_first_error(
    type: str, payload: object, raised: type[BaseException], text: str
) -> None:
    with testing.start(worker) as ingot:
        job = ingot.client.submit(type, payload)
        with pytest.raises(raised, match=text) as caught:
            ingot.drain(raise_errors=True)
        assert caught.value.__notes__[0] == f"The job is {job.id}."
        assert text in (job.refresh().error or "")


def test_a_cancel_reaches_a_job_of_a_drain() -> None:
    meddler = Worker()

    @meddler.handler("meddle")
    def meddle(job: WorkerJob) -> None:
        with Client(ingot.url, token=ingot.token) as client:
            client.cancel(job.id)
        job.progress(1)
        assert job.wait("20s")
        job.check()

    with testing.start(meddler) as ingot:
        job = ingot.client.submit("meddle")
        assert ingot.drain(raise_errors=True) == 1
        assert job.refresh().status == "canceled"


def test_a_handler_can_wait_for_a_job_that_it_submits() -> None:
    parent = Worker()

    @parent.handler("parent")
    def submit_and_wait(job: WorkerJob) -> object:
        with Client(ingot.url, token=ingot.token) as client:
            return client.submit("chain", {"left": 0}).wait("20s").result

    with testing.start(parent, worker) as ingot:
        job = ingot.client.submit("parent")
        assert ingot.drain(raise_errors=True) == 2
        assert job.refresh().result == 0


def test_a_lease_that_expires_during_a_drain_is_lost() -> None:
    sleeper = Worker()

    @sleeper.handler("oversleep")
    def oversleep(job: WorkerJob) -> int:
        if job.attempt == 1:
            with Client(ingot.url, token=ingot.token) as client:
                # A claim for another type finds the expired lease, unless a heartbeat renewed it before.
                while client.read(job.id).status is JobStatus.RUNNING:
                    ingot.clock.advance(hours=1)
                    job.wait("20ms")
            job.progress(1)  # The response to the heartbeat that sends this reports the lost lease.
            assert job.wait("20s")
            job.check()
        return job.attempt

    with testing.start(sleeper, worker) as ingot:
        job = ingot.client.submit("oversleep")
        ingot.drain()
        ingot.clock.advance(minutes=1)
        ingot.drain()
        assert (job.refresh().result, job.data.failures, job.data.crashes) == (2, 0, 1)


def test_moving_the_clock_does_not_make_a_heartbeat_return_a_job_that_was_just_claimed() -> None:
    """The heartbeat represents one that was sent before the claim, and arrives after it."""
    with testing.start() as ingot:
        job = ingot.client.submit("greet")
        secret = ingot.client.admin.create_worker("late", shared=True).secret
        headers = {"x-worker-id": "late", "x-worker-secret": secret}
        with httpx.Client(base_url=f"{ingot.url}/api/v1", headers=headers, verify=False) as late:
            late.post("/workers", json={"id": "late", "types": ["greet"]}).raise_for_status()
            claim = late.post("/jobs/claim", json={"worker_id": "late", "types": ["greet"]})
            assert [job.id] == [claimed["id"] for claimed in claim.json()["jobs"]]
            ingot.clock.advance(minutes=1)  # Less than a lease, and more than a server waits for an unnamed claim.
            late.post("/workers/late/heartbeat", json={"jobs": []}).raise_for_status()
        assert job.refresh().status is JobStatus.RUNNING


def test_a_drain_runs_a_job_again_that_was_snoozed_for_no_time() -> None:
    patient = Worker()

    @patient.handler("patient")
    def wait(job: WorkerJob) -> int:
        if job.attempt < 40:
            job.snooze("0s")
        return job.attempt

    with testing.start(patient, worker) as ingot:
        ingot.client.submit("patient")
        assert ingot.drain() == 40


def test_a_drain_that_does_not_end_raises_not_in_time() -> None:
    with testing.start(worker) as ingot:
        ingot.client.submit("snooze")
        with pytest.raises(NotInTime, match="5 attempts"):
            ingot.drain(attempts_max=5)
    with testing.start(worker) as ingot:
        job = ingot.client.submit("stuck")
        with pytest.raises(NotInTime, match="types: stuck"):
            ingot.drain(timeout="6s")
        assert (job.refresh().status, job.data.failures) == ("queued", 0), "the job was released"


def test_a_drain_serves_all_tenants_and_ignores_settings_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGOT_SERVER_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("INGOT_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    monkeypatch.setenv("INGOT_TENANT", "nobody")
    with testing.start(worker) as ingot:
        ingot.client.admin.create_tenant("acme")
        with Client(ingot.url, token=ingot.token, tenant="acme") as client:
            other_job = client.submit("chain", {"left": 0})
            own_job = ingot.client.submit("chain", {"left": 0})
            assert ingot.drain() == 2
            assert (other_job.refresh().status, own_job.refresh().status) == ("succeeded", "succeeded")


def test_two_test_servers_are_independent_and_leave_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with testing.start(worker) as first, testing.start() as other:
        first.client.submit("chain", {"left": 0})
        assert (other.drain(), sum(other.client.summary().counts.values())) == (0, 0)
        assert len(list(tmp_path.iterdir())) == 2
    assert list(tmp_path.iterdir()) == []


async def test_async_handlers_run_on_the_loop_of_the_test() -> None:
    awaiting, test_loop = Worker(), asyncio.get_running_loop()

    @awaiting.handler("where")
    async def where(job: WorkerJob) -> bool:
        async with AsyncClient(ingot.url, token=ingot.token) as client:
            assert (await client.me()).tenant is not None
        return asyncio.get_running_loop() is test_loop

    async with testing.start_async(awaiting, worker) as ingot:
        job = await ingot.client.submit("where")
        assert await ingot.drain(raise_errors=True) == 1
        assert (await job.refresh()).result is True
        ingot.clock.advance(hours=1)
        await ingot.client.submit("fail", "x")
        with pytest.raises(ZeroDivisionError):
            await ingot.drain(raise_errors=True)


async def test_a_synchronous_drain_on_an_event_loop_is_rejected() -> None:
    with testing.start(worker) as ingot, pytest.raises(InvalidInput, match="event loop"):
        ingot.drain()
