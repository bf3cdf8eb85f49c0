"""Retry: the only way to run a finished job again; it is recorded as an event."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from ingot.jobs import DuplicateJob, Job, JobNotFinished, JobNotFound, JobStatus
from ingot.kernel.ids import new_id
from tests.conformance.snapshots import refuses, snapshot
from tests.factories import LEASE_SECONDS, Bench

FINISHED = [JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED]


@pytest.mark.parametrize("status", FINISHED)
async def test_a_finished_job_is_queued_again(bench: Bench, status: JobStatus) -> None:
    job = await bench.make_job_in(status)
    bench.clock.advance(seconds=60)
    answer = await bench.jobs.retry(bench.tenant, job.id)
    expected = (JobStatus.QUEUED, bench.clock.now(), None, False)
    for seen in (answer, await bench.reload(job)):
        assert (seen.status, seen.run_at, seen.finished_at, seen.cancel_requested) == expected
    (claim,) = await bench.jobs.claim("worker", ["noop"])
    assert claim.job.id == job.id


@pytest.mark.parametrize("status", FINISHED)
async def test_a_retry_publishes_an_event_and_updates_the_counts(bench: Bench, status: JobStatus) -> None:
    job = await bench.make_job_in(status)
    await bench.jobs.retry(bench.tenant, job.id)
    seen = (await snapshot(bench))[0]
    last = seen["events"][-1]
    assert (last["name"], last["data"]["id"], last["data"]["status"]) == ("job.retried", job.id, "queued")
    assert {name: count for name, count in seen["counts"].items() if count} == {"queued": 1}


@pytest.mark.parametrize("status", [JobStatus.QUEUED, JobStatus.RUNNING])
async def test_an_unfinished_job_cannot_be_retried(bench: Bench, status: JobStatus) -> None:
    job = await bench.make_job_in(status)
    async with refuses(bench, JobNotFinished):
        await bench.jobs.retry(bench.tenant, job.id, priority=1, reset_attempts=True)


async def test_a_retry_changes_only_the_named_fields(bench: Bench) -> None:
    job = await bench.make_job_in(JobStatus.DEAD, payload={"n": 1}, tags=["a"], priority=4, max_attempts=2)
    later = bench.clock.now() + timedelta(hours=1)
    answer = await bench.jobs.retry(bench.tenant, job.id, priority=1, max_attempts=9, run_at=later)
    assert (answer.priority, answer.max_attempts, answer.run_at) == (1, 9, later)
    assert (answer.read(), answer.tags, answer.failures, answer.attempts) == ({"n": 1}, ("a",), 1, 1)
    assert await bench.jobs.claim("worker", ["noop"]) == []


async def test_a_retry_without_options_keeps_priority_and_max_attempts(bench: Bench) -> None:
    job = await bench.make_job_in(JobStatus.DEAD, priority=4, max_attempts=2)
    answer = await bench.jobs.retry(bench.tenant, job.id)
    assert (answer.priority, answer.max_attempts) == (4, 2)


async def test_a_retry_with_a_past_run_at_is_due_now(bench: Bench) -> None:
    job = await bench.make_job_in(JobStatus.DEAD)
    answer = await bench.jobs.retry(bench.tenant, job.id, run_at=datetime(2020, 1, 1, tzinfo=UTC))
    assert answer.run_at == bench.clock.now()


async def test_a_retry_without_reset_permits_one_more_attempt(bench: Bench) -> None:
    job = await _dead_after(bench, failures=3, max_attempts=3)
    await bench.jobs.retry(bench.tenant, job.id)
    (claim,) = await bench.jobs.claim("worker", ["noop"])
    assert (claim.job.failures, claim.job.attempts) == (3, 4)
    assert (await bench.jobs.fail(claim, "no")).status is JobStatus.DEAD
    assert (await bench.reload(job)).failures == 4


async def test_a_retry_with_reset_clears_failures_and_keeps_attempts(bench: Bench) -> None:
    job = await _dead_after(bench, failures=3, max_attempts=3)
    answer = await bench.jobs.retry(bench.tenant, job.id, reset_attempts=True)
    assert (answer.failures, answer.crashes, answer.attempts) == (0, 0, 3)
    (claim,) = await bench.jobs.claim("worker", ["noop"])
    assert (await bench.jobs.fail(claim, "no")).status is JobStatus.QUEUED


async def test_a_retry_with_reset_clears_crashes(bench: Bench) -> None:
    job = await bench.make_job()
    for _ in range(3):
        assert len(await bench.jobs.claim("worker", ["noop"])) == 1
        bench.clock.advance(seconds=LEASE_SECONDS)
        await bench.jobs.maintain()
        bench.clock.advance(seconds=5)
    assert (await bench.reload(job)).status is JobStatus.DEAD
    answer = await bench.jobs.retry(bench.tenant, job.id, reset_attempts=True)
    assert (answer.crashes, answer.attempts) == (0, 3)


async def test_a_retry_clears_cancel_requested(bench: Bench) -> None:
    claim = await bench.make_claim()
    await bench.jobs.cancel(bench.tenant, claim.job.id)
    await bench.jobs.release(claim)
    await bench.jobs.retry(bench.tenant, claim.job.id)
    (again,) = await bench.jobs.claim("worker", ["noop"])
    assert not again.job.cancel_requested
    assert (await bench.jobs.release(again)).status is JobStatus.QUEUED


async def test_a_job_whose_dedupe_key_is_in_use_cannot_be_retried(bench: Bench) -> None:
    job = await bench.make_job_in(JobStatus.CANCELED, dedupe_key="d")
    holder = await bench.make_job(dedupe_key="d")
    async with refuses(bench, DuplicateJob) as caught:
        await bench.jobs.retry(bench.tenant, job.id)
    assert isinstance(caught.value, DuplicateJob)
    assert caught.value.holder_id == holder.id


async def test_a_retried_job_holds_its_dedupe_key_again(bench: Bench) -> None:
    job = await bench.make_job_in(JobStatus.CANCELED, dedupe_key="d")
    await bench.jobs.retry(bench.tenant, job.id)
    async with refuses(bench, DuplicateJob):
        await bench.jobs.enqueue(bench.tenant, "noop", dedupe_key="d")


async def test_one_of_two_concurrent_retries_with_one_dedupe_key_is_refused(bench: Bench) -> None:
    jobs = [await bench.make_job_in(JobStatus.CANCELED, dedupe_key="d") for _ in range(2)]
    answers = await asyncio.gather(*(bench.jobs.retry(bench.tenant, job.id) for job in jobs), return_exceptions=True)
    assert Counter(type(answer) for answer in answers) == {Job: 1, DuplicateJob: 1}


async def test_one_of_two_concurrent_retries_of_a_job_is_refused(bench: Bench) -> None:
    job = await bench.make_job_in(JobStatus.DEAD)
    answers = await asyncio.gather(*(bench.jobs.retry(bench.tenant, job.id) for _ in range(2)), return_exceptions=True)
    assert Counter(type(answer) for answer in answers) == {Job: 1, JobNotFinished: 1}
    assert (await bench.event_names()).count("job.retried") == 1


async def test_an_unknown_job_cannot_be_retried(bench: Bench) -> None:
    async with refuses(bench, JobNotFound):
        await bench.jobs.retry(bench.tenant, new_id())


@pytest.mark.parametrize("status", [JobStatus.DEAD, JobStatus.QUEUED])
async def test_a_job_of_another_tenant_cannot_be_retried(bench: Bench, status: JobStatus) -> None:
    other = await bench.tenants.create("other")
    job = await bench.make_job_in(status)
    async with refuses(bench, JobNotFound):
        await bench.jobs.retry(other.id, job.id)


async def _dead_after(bench: Bench, *, failures: int, max_attempts: int) -> Job:
    job = await bench.make_job(max_attempts=max_attempts)
    for _ in range(failures):
        (claim,) = await bench.jobs.claim("worker", ["noop"])
        await bench.jobs.fail(claim, "no")
        bench.clock.advance(seconds=3600)
    dead = await bench.reload(job)
    assert dead.status is JobStatus.DEAD
    return dead
