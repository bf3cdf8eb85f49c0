"""Cancel: waiting jobs stop at once, running jobs are requested to stop."""

from __future__ import annotations

import asyncio

import pytest

from ingot.jobs import Done, Failed, JobFinished, JobNotFound, JobStatus, Outcome, Release, Snooze
from ingot.kernel.ids import new_id
from tests.conformance.snapshots import refuses, snapshot
from tests.factories import LEASE_SECONDS, Bench


@pytest.mark.parametrize("delay", [0, 3600])
async def test_a_waiting_job_is_canceled_at_once(bench: Bench, delay: float) -> None:
    job = await bench.make_job(delay=delay)
    bench.clock.advance(seconds=1)
    answer = await bench.jobs.cancel(bench.tenant, job.id)
    assert (answer.status, answer.finished_at) == (JobStatus.CANCELED, bench.clock.now())
    assert (await bench.reload(job)).status is JobStatus.CANCELED
    assert await bench.event_names() == ["job.created", "job.canceled"]


async def test_a_canceled_job_is_never_handed_out(bench: Bench) -> None:
    jobs = [await bench.make_job(), await bench.make_job(delay=60)]
    for job in jobs:
        await bench.jobs.cancel(bench.tenant, job.id)
    bench.clock.advance(days=1)
    await bench.jobs.maintain()
    assert await bench.jobs.claim("worker", ["noop"], limit=10) == []
    assert [(await bench.reload(job)).status for job in jobs] == [JobStatus.CANCELED] * 2


async def test_a_job_that_waits_for_a_retry_is_canceled_at_once(bench: Bench) -> None:
    claim = await bench.make_claim()
    await bench.jobs.fail(claim, "no")
    assert (await bench.jobs.cancel(bench.tenant, claim.job.id)).status is JobStatus.CANCELED


async def test_a_cancel_of_a_running_job_sets_cancel_requested(bench: Bench) -> None:
    claim = await bench.make_claim()
    answer = await bench.jobs.cancel(bench.tenant, claim.job.id)
    assert (answer.status, answer.cancel_requested, answer.finished_at) == (JobStatus.RUNNING, True, None)
    last = (await snapshot(bench))[0]["events"][-1]
    assert (last["name"], last["data"]["status"], last["data"]["cancel_requested"]) == ("job.updated", "running", True)


@pytest.mark.parametrize("status", [JobStatus.CANCELED, JobStatus.RUNNING])
async def test_a_repeated_cancel_changes_nothing(bench: Bench, status: JobStatus) -> None:
    job = await bench.make_job_in(status)
    first = await bench.jobs.cancel(bench.tenant, job.id)
    bench.clock.advance(seconds=10)
    before = await snapshot(bench)
    again = await bench.jobs.cancel(bench.tenant, job.id)
    assert (again.status, again.cancel_requested, again.finished_at) == (
        first.status,
        first.cancel_requested,
        first.finished_at,
    )
    assert await snapshot(bench) == before


@pytest.mark.parametrize("status", [JobStatus.SUCCEEDED, JobStatus.DEAD])
async def test_a_finished_job_cannot_be_canceled(bench: Bench, status: JobStatus) -> None:
    job = await bench.make_job_in(status)
    async with refuses(bench, JobFinished):
        await bench.jobs.cancel(bench.tenant, job.id)


async def test_an_unknown_job_cannot_be_canceled(bench: Bench) -> None:
    async with refuses(bench, JobNotFound):
        await bench.jobs.cancel(bench.tenant, new_id())


@pytest.mark.parametrize("status", [JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.DEAD])
async def test_a_job_of_another_tenant_cannot_be_canceled(bench: Bench, status: JobStatus) -> None:
    other = await bench.tenants.create("other")
    job = await bench.make_job_in(status)
    async with refuses(bench, JobNotFound):
        await bench.jobs.cancel(other.id, job.id)


async def test_a_job_that_completes_after_a_cancel_request_succeeds(bench: Bench) -> None:
    claim = await bench.make_claim()
    await bench.jobs.cancel(bench.tenant, claim.job.id)
    assert (await bench.jobs.complete(claim, "done")).status is JobStatus.SUCCEEDED
    assert (await bench.reload(claim)).read("result") == "done"


@pytest.mark.parametrize("outcome", [Failed(error="e"), Failed(error="e", retry=False), Snooze(delay=5), Release()])
@pytest.mark.parametrize("max_attempts", [1, 5])
async def test_every_other_outcome_after_a_cancel_request_is_canceled_and_not_counted(
    bench: Bench, outcome: Outcome, max_attempts: int
) -> None:
    claim = await bench.make_claim(max_attempts=max_attempts)
    await bench.jobs.cancel(bench.tenant, claim.job.id)
    answer = await bench.jobs.settle(claim.job.id, claim.fence, outcome)
    assert (answer.status, answer.will_retry, answer.run_at) == (JobStatus.CANCELED, False, None)
    job = await bench.reload(claim)
    assert (job.status, job.failures, job.crashes, job.finished_at) == (
        JobStatus.CANCELED,
        0,
        0,
        bench.clock.now(),
    )
    assert (await bench.event_names())[-1] == "job.canceled"


async def test_a_lost_lease_after_a_cancel_request_cancels_the_job(bench: Bench) -> None:
    claim = await bench.make_claim()
    await bench.jobs.cancel(bench.tenant, claim.job.id)
    bench.clock.advance(seconds=LEASE_SECONDS)
    await bench.jobs.maintain()
    job = await bench.reload(claim)
    assert (job.status, job.crashes) == (JobStatus.CANCELED, 0)


async def test_a_settle_after_a_cancel_request_can_be_repeated(bench: Bench) -> None:
    outcomes: dict[str, Outcome] = {"a": Failed(error="e"), "b": Snooze(delay=5), "c": Release(), "d": Done()}
    for type, outcome in outcomes.items():
        claim = await bench.make_claim(type)
        await bench.jobs.cancel(bench.tenant, claim.job.id)
        first = await bench.jobs.settle(claim.job.id, claim.fence, outcome)
        assert await bench.jobs.settle(claim.job.id, claim.fence, outcome) == first


async def test_a_job_succeeds_when_cancel_and_completion_are_concurrent(bench: Bench) -> None:
    for n in range(10):
        claim = await bench.make_claim()
        calls = [bench.jobs.cancel(bench.tenant, claim.job.id), bench.jobs.complete(claim, n)]
        answers = await asyncio.gather(*(calls if n % 2 else reversed(calls)), return_exceptions=True)
        # The cancel is refused only if the completion came first.
        refused = [type(answer) for answer in answers if isinstance(answer, BaseException)]
        assert refused in ([], [JobFinished])
        job = await bench.reload(claim)
        assert (job.status, job.read("result")) == (JobStatus.SUCCEEDED, n)
        assert (await bench.event_names())[-1] == "job.completed"


async def test_a_job_is_canceled_once_when_cancel_and_failure_are_concurrent(bench: Bench) -> None:
    for n in range(10):
        claim = await bench.make_claim()
        calls = [bench.jobs.cancel(bench.tenant, claim.job.id), bench.jobs.fail(claim, "no")]
        await asyncio.gather(*(calls if n % 2 else reversed(calls)))
        job = await bench.reload(claim)
        assert job.status is JobStatus.CANCELED
        names = [event.name for event in await bench.events.read(bench.tenant, limit=1000)][-2:]
        assert names.count("job.canceled") == 1


async def test_a_job_is_canceled_or_requested_to_stop_when_cancel_and_claim_are_concurrent(bench: Bench) -> None:
    for _ in range(10):
        job = await bench.make_job()
        _, claims = await asyncio.gather(bench.jobs.cancel(bench.tenant, job.id), bench.jobs.claim("worker", ["noop"]))
        current = await bench.reload(job)
        expected = (JobStatus.RUNNING, True) if claims else (JobStatus.CANCELED, False)
        assert (current.status, current.cancel_requested) == expected
