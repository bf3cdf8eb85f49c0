"""Settles: the outcome of an attempt is recorded once, under its fence."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from ingot.jobs import (
    AttemptOutcome,
    Backoff,
    Claim,
    Definition,
    Done,
    Failed,
    JobNotFound,
    JobStatus,
    LeaseLost,
    Outcome,
    Progress,
    Release,
    Settle,
    Settled,
    Snooze,
)
from ingot.kernel.clock import MICROS
from ingot.kernel.errors import IngotError, InvalidInput
from ingot.kernel.ids import new_id
from tests.conformance.snapshots import refuses, refuses_each, snapshot
from tests.factories import LEASE_SECONDS, Bench

OUTCOMES: dict[str, Outcome] = {
    "done": Done(),
    "done with a result": Done(result=b'{"pages": 3}'),
    "failed": Failed(error="broken", exit_code=3),
    "failed for good": Failed(error="broken", retry=False),
    "timed out": Failed(error="too slow", timed_out=True),
    "snoozed": Snooze(delay=90 * MICROS),
    "snoozed without delay": Snooze(delay=0),
    "released": Release(),
}
each_outcome = pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=list(OUTCOMES))


async def _last_events(bench: Bench, count: int) -> list[Any]:
    return [(event["name"], event["data"]) for event in (await snapshot(bench))[0]["events"][-count:]]


# -- the status of the job ----------------------------------------------------------------------------------


async def test_a_completed_job_succeeds_with_its_result(bench: Bench) -> None:
    claim = await bench.make_claim()
    bench.clock.advance(seconds=7)
    answer = await bench.jobs.complete(claim, {"pages": 3})
    assert answer == Settled(
        job_id=claim.job.id, tenant=bench.tenant, status=JobStatus.SUCCEEDED, attempts=1, will_retry=False, run_at=None
    )
    job = await bench.reload(claim)
    assert (job.status, job.read("result"), job.finished_at) == (
        JobStatus.SUCCEEDED,
        {"pages": 3},
        bench.clock.now(),
    )
    assert (job.worker_id, job.lease_expires_at, job.failures, job.crashes) == (None, None, 0, 0)


async def test_a_failed_job_waits_for_its_backoff(bench: Bench) -> None:
    claim = await bench.make_claim()
    answer = await bench.jobs.fail(claim, "broken")
    job = await bench.reload(claim)
    assert (answer.status, answer.will_retry, answer.run_at) == (JobStatus.QUEUED, True, job.run_at)
    assert (job.status, job.failures, job.crashes, job.last_error) == (JobStatus.QUEUED, 1, 0, "broken")
    wait = (job.run_at - bench.clock.now()).total_seconds()
    assert 0.75 <= wait <= 1


async def test_retry_delays_follow_the_backoff_of_the_definition(bench: Bench) -> None:
    backoff = Backoff(first_seconds=10, factor=3, max_seconds=100)
    await bench.jobs.define(Definition(type="noop", backoff=backoff, max_attempts=10))
    await bench.make_job()
    waits = []
    for _ in range(5):
        (claim,) = await bench.jobs.claim("worker", ["noop"])
        answer = await bench.jobs.fail(claim, "broken")
        assert answer.run_at is not None
        waits.append((answer.run_at - bench.clock.now()).total_seconds())
        bench.clock.advance(seconds=100)
    assert all(0.75 * most <= wait <= most for wait, most in zip(waits, (10, 30, 90, 100, 100), strict=True))


async def test_a_job_is_dead_after_max_attempts_failures(bench: Bench) -> None:
    await bench.make_job(max_attempts=3)
    statuses = []
    for _ in range(3):
        (claim,) = await bench.jobs.claim("worker", ["noop"])
        statuses.append((await bench.jobs.fail(claim, "broken")).status)
        bench.clock.advance(seconds=3600)
    assert statuses == [JobStatus.QUEUED, JobStatus.QUEUED, JobStatus.DEAD]
    assert await bench.jobs.claim("worker", ["noop"]) == []
    (job,) = (await bench.jobs.list(bench.tenant)).items
    assert (job.failures, job.attempts, job.crashes) == (3, 3, 0)


async def test_a_failure_without_retry_makes_the_job_dead(bench: Bench) -> None:
    claim = await bench.make_claim()
    answer = await bench.jobs.fail(claim, "no such file", retry=False, exit_code=2)
    assert (answer.status, answer.will_retry, answer.run_at) == (JobStatus.DEAD, False, None)
    job = await bench.reload(claim)
    assert (job.status, job.failures, job.last_error, job.finished_at) == (
        JobStatus.DEAD,
        1,
        "no such file",
        bench.clock.now(),
    )


async def test_a_snoozed_job_is_due_after_its_delay_and_not_counted(bench: Bench) -> None:
    claim = await bench.make_claim(max_attempts=1)
    answer = await bench.jobs.snooze(claim, timedelta(minutes=5))
    assert (answer.status, answer.run_at) == (JobStatus.QUEUED, bench.clock.now() + timedelta(minutes=5))
    job = await bench.reload(claim)
    assert (job.status, job.attempts, job.failures, job.crashes) == (JobStatus.QUEUED, 1, 0, 0)
    bench.clock.advance(seconds=299)
    assert await bench.jobs.claim("worker", ["noop"]) == []
    bench.clock.advance(seconds=1)
    assert len(await bench.jobs.claim("worker", ["noop"])) == 1


async def test_a_released_job_can_be_claimed_at_once_and_is_not_counted(bench: Bench) -> None:
    claim = await bench.make_claim(max_attempts=1)
    answer = await bench.jobs.release(claim)
    assert (answer.status, answer.run_at) == (JobStatus.QUEUED, bench.clock.now())
    (again,) = await bench.jobs.claim("other", ["noop"])
    assert (again.job.id, again.job.attempts, again.job.failures, again.job.crashes) == (claim.job.id, 2, 0, 0)


async def test_releases_and_snoozes_do_not_count_toward_max_attempts(bench: Bench) -> None:
    await bench.make_job(max_attempts=1)
    for n in range(50):
        (claim,) = await bench.jobs.claim("worker", ["noop"])
        await (bench.jobs.release(claim) if n % 2 else bench.jobs.snooze(claim, 0))
    (job,) = (await bench.jobs.list(bench.tenant)).items
    assert (job.status, job.attempts, job.failures, job.crashes) == (JobStatus.QUEUED, 50, 0, 0)


@each_outcome
async def test_an_attempt_does_not_end_before_its_start_when_the_clock_is_set_back(
    bench: Bench, outcome: Outcome
) -> None:
    claim = await bench.make_claim()
    bench.clock.advance(seconds=-60)
    await bench.jobs.settle(claim.job.id, claim.fence, outcome)
    (attempt,) = await bench.jobs.attempts(bench.tenant, claim.job.id)
    job = await bench.reload(claim.job)
    assert attempt.finished_at is not None
    assert attempt.finished_at >= attempt.started_at
    assert job.status is not JobStatus.QUEUED or job.run_at >= attempt.finished_at


async def test_a_retry_clears_the_result(bench: Bench) -> None:
    job = await bench.make_job_in(JobStatus.SUCCEEDED)
    assert job.read("result") == "done"
    await bench.jobs.retry(bench.tenant, job.id)
    assert (await bench.reload(job)).read("result") is None
    (claim,) = await bench.jobs.claim("worker", ["noop"])
    await bench.jobs.complete(claim, "done again")
    assert (await bench.reload(job)).read("result") == "done again"


# -- attempts, events and counts ----------------------------------------------------------------------------


@each_outcome
async def test_an_attempt_stores_its_outcome_error_and_progress(bench: Bench, outcome: Outcome) -> None:
    claim = await bench.make_claim()
    await bench.jobs.heartbeat(claim.job.id, claim.fence, progress=Progress(percent=50, stage="half"))
    bench.clock.advance(seconds=2)
    answer = await bench.jobs.settle(claim.job.id, claim.fence, outcome)
    (attempt,) = await bench.jobs.attempts(bench.tenant, claim.job.id)
    kinds = {
        Done: AttemptOutcome.SUCCEEDED,
        Failed: AttemptOutcome.TIMED_OUT if getattr(outcome, "timed_out", False) else AttemptOutcome.FAILED,
        Snooze: AttemptOutcome.SNOOZED,
        Release: AttemptOutcome.RELEASED,
    }
    failure = outcome if isinstance(outcome, Failed) else None
    assert (attempt.outcome, attempt.status_after) == (kinds[type(outcome)], answer.status)
    assert (attempt.started_at, attempt.finished_at) == (
        bench.clock.now() - timedelta(seconds=2),
        bench.clock.now(),
    )
    assert (attempt.error, attempt.exit_code) == (failure and failure.error, failure and failure.exit_code)
    assert attempt.progress == Progress(percent=50, stage="half")


@pytest.mark.parametrize(
    ("outcome", "names"),
    [
        (Done(), ["job.completed"]),
        (Failed(error="e"), ["job.failed"]),
        (Failed(error="e", retry=False), ["job.failed", "job.dead"]),
        (Failed(error="e", timed_out=True), ["job.failed"]),
        (Snooze(delay=1), ["job.updated"]),
        (Release(), ["job.updated"]),
    ],
)
async def test_a_settle_publishes_its_events(bench: Bench, outcome: Outcome, names: list[str]) -> None:
    claim = await bench.make_claim()
    before = await bench.event_names()
    await bench.jobs.settle(claim.job.id, claim.fence, outcome)
    assert await bench.event_names() == before + names


async def test_the_event_of_a_failure_contains_will_retry(bench: Bench) -> None:
    await bench.make_job(max_attempts=2)
    for _ in range(2):
        (claim,) = await bench.jobs.claim("worker", ["noop"])
        await bench.jobs.fail(claim, "broken")
        bench.clock.advance(seconds=3600)
    failures = [data for name, data in await _last_events(bench, 10) if name == "job.failed"]
    assert [(data["will_retry"], data["error"], data["failures"]) for data in failures] == [
        (True, "broken", 1),
        (False, "broken", 2),
    ]


@each_outcome
async def test_counts_follow_the_settle(bench: Bench, outcome: Outcome) -> None:
    claim = await bench.make_claim()
    answer = await bench.jobs.settle(claim.job.id, claim.fence, outcome)
    counts = (await bench.jobs.summary(bench.tenant)).counts
    assert {status: count for status, count in counts.items() if count} == {answer.status: 1}


async def test_an_error_is_truncated_and_invalid_characters_are_replaced(bench: Bench) -> None:
    claim = await bench.make_claim()
    await bench.jobs.fail(claim, "a\x00b\ud800c" + "x" * 20_000)
    error = (await bench.reload(claim)).last_error
    assert error is not None
    assert (error[:5], len(error)) == ("a\ufffdb?c", 16 * 1024)


async def test_an_error_is_stored_alike_by_fail_and_settle(bench: Bench) -> None:
    for type in ("fail", "settle"):
        claim = await bench.make_claim(type)
        if type == "fail":
            await bench.jobs.fail(claim, "a\x00" + "x" * 20_000)
        else:
            await bench.jobs.settle(claim.job.id, claim.fence, Failed(error="a\x00" + "x" * 20_000))
    errors = [job.last_error for job in (await bench.jobs.list(bench.tenant)).items]
    assert errors[0] == errors[1] == "a\ufffd" + "x" * (16 * 1024 - 2)


# -- permitted settles --------------------------------------------------------------------------------------


async def test_a_settle_after_an_expired_but_unswept_lease_succeeds(bench: Bench) -> None:
    claim = await bench.make_claim()
    bench.clock.advance(seconds=100 * LEASE_SECONDS)
    assert (await bench.jobs.complete(claim)).status is JobStatus.SUCCEEDED


@each_outcome
async def test_a_swept_attempt_cannot_be_settled(bench: Bench, outcome: Outcome) -> None:
    claim = await bench.make_claim()
    bench.clock.advance(seconds=LEASE_SECONDS)
    await bench.jobs.maintain()
    async with refuses(bench, LeaseLost):
        await bench.jobs.settle(claim.job.id, claim.fence, outcome)


@each_outcome
async def test_the_worker_of_an_earlier_attempt_cannot_settle_the_next(bench: Bench, outcome: Outcome) -> None:
    stale = await bench.make_claim()
    bench.clock.advance(seconds=LEASE_SECONDS)
    await bench.jobs.maintain()
    bench.clock.advance(seconds=5)
    (current,) = await bench.jobs.claim("worker", ["noop"])
    async with refuses(bench, LeaseLost):
        await bench.jobs.settle(stale.job.id, stale.fence, outcome)
    assert (await bench.jobs.complete(current)).status is JobStatus.SUCCEEDED


async def test_an_unknown_fence_settles_nothing(bench: Bench) -> None:
    claim = await bench.make_claim()
    fences = [0, -1, 1, 2**53, 2**64, 10**30]
    calls = {str(fence): partial(bench.jobs.settle, claim.job.id, fence, Done()) for fence in fences}
    await refuses_each(bench, LeaseLost, calls)


@each_outcome
async def test_a_job_that_was_never_claimed_cannot_be_settled(bench: Bench, outcome: Outcome) -> None:
    job = await bench.make_job()
    async with refuses(bench, LeaseLost):
        await bench.jobs.settle(job.id, job.fence, outcome)


async def test_an_unknown_job_cannot_be_settled(bench: Bench) -> None:
    claim = await bench.make_claim()
    async with refuses(bench, JobNotFound):
        await bench.jobs.settle(new_id(), claim.fence, Done())


async def test_another_tenant_cannot_settle_a_job(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    claim = await bench.make_claim()
    async with refuses(bench, JobNotFound):
        await bench.jobs.settle(claim.job.id, claim.fence, Done(), tenant=other.id)


async def test_another_tenant_cannot_repeat_a_settle(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    claim = await bench.make_claim()
    await bench.jobs.complete(claim)
    async with refuses(bench, JobNotFound):
        await bench.jobs.settle(claim.job.id, claim.fence, Done(), tenant=other.id)


async def test_a_tenant_can_settle_its_own_job(bench: Bench) -> None:
    claim = await bench.make_claim()
    answer = await bench.jobs.settle(claim.job.id, claim.fence, Done(), tenant=bench.tenant)
    assert answer.status is JobStatus.SUCCEEDED


# -- repeated settles ---------------------------------------------------------------------------------------


@each_outcome
async def test_a_repeated_settle_returns_the_first_result(bench: Bench, outcome: Outcome) -> None:
    claim = await bench.make_claim()
    first = await bench.jobs.settle(claim.job.id, claim.fence, outcome)
    bench.clock.advance(seconds=3)
    before = await snapshot(bench)
    assert await bench.jobs.settle(claim.job.id, claim.fence, outcome) == first
    assert await snapshot(bench) == before


@each_outcome
async def test_a_repeated_settle_returns_the_first_result_after_later_attempts(bench: Bench, outcome: Outcome) -> None:
    claim = await bench.make_claim()
    first = await bench.jobs.settle(claim.job.id, claim.fence, outcome)
    if first.status is not JobStatus.QUEUED:
        await bench.jobs.retry(bench.tenant, claim.job.id)
    bench.clock.advance(seconds=3600)
    (later,) = await bench.jobs.claim("other", ["noop"])
    assert await bench.jobs.settle(claim.job.id, claim.fence, outcome) == first
    await bench.jobs.fail(later, "no", retry=False)
    assert await bench.jobs.settle(claim.job.id, claim.fence, outcome) == first


@pytest.mark.parametrize("first", OUTCOMES)
async def test_a_different_outcome_under_the_same_fence_is_refused(bench: Bench, first: str) -> None:
    claim = await bench.make_claim()
    await bench.jobs.settle(claim.job.id, claim.fence, OUTCOMES[first])
    others = {**OUTCOMES, "another result": Done(result=b"4"), "another error": Failed(error="other")}
    del others[first]
    settle = partial(bench.jobs.settle, claim.job.id, claim.fence)
    await refuses_each(bench, LeaseLost, {name: partial(settle, second) for name, second in others.items()})


async def test_a_failure_with_another_error_is_a_different_outcome(bench: Bench) -> None:
    claim = await bench.make_claim()
    await bench.jobs.fail(claim, "broken", exit_code=1)
    for error, retry, exit_code in (("broken!", True, 1), ("broken", False, 1), ("broken", True, 2)):
        async with refuses(bench, LeaseLost):
            await bench.jobs.fail(claim, error, retry=retry, exit_code=exit_code)


async def test_a_result_with_surrounding_whitespace_can_be_repeated(bench: Bench) -> None:
    claim = await bench.make_claim()
    first = await bench.jobs.complete(claim, b' {"a": 1}\n')
    assert await bench.jobs.complete(claim, b' {"a": 1}\n') == first


async def test_a_sanitized_error_can_be_repeated(bench: Bench) -> None:
    claim = await bench.make_claim()
    outcome = Failed(error="a\x00\ud800" + "x" * 20_000)
    first = await bench.jobs.settle(claim.job.id, claim.fence, outcome)
    assert await bench.jobs.settle(claim.job.id, claim.fence, outcome) == first


# -- concurrent settles -------------------------------------------------------------------------------------


@each_outcome
async def test_eight_concurrent_equal_settles_count_once(bench: Bench, outcome: Outcome) -> None:
    claim = await bench.make_claim()
    answers = await asyncio.gather(*(bench.jobs.settle(claim.job.id, claim.fence, outcome) for _ in range(8)))
    assert len({(answer.status, answer.run_at) for answer in answers}) == 1
    job = await bench.reload(claim)
    assert job.failures == (1 if isinstance(outcome, Failed) else 0)
    ended = [name for name in await bench.event_names() if name not in ("job.created", "job.started")]
    assert len(ended) == len(set(ended))


async def test_only_one_of_two_concurrent_outcomes_is_recorded(bench: Bench) -> None:
    claim = await bench.make_claim()
    answers = await asyncio.gather(
        bench.jobs.complete(claim, 1), bench.jobs.fail(claim, "no", retry=False), return_exceptions=True
    )
    assert Counter(type(answer) for answer in answers) == {Settled: 1, LeaseLost: 1}
    (settled,) = [answer for answer in answers if isinstance(answer, Settled)]
    assert (await bench.reload(claim)).status is settled.status
    names = await bench.event_names()
    assert len([name for name in names if name in ("job.completed", "job.dead")]) == 1


# -- many settles in one call -------------------------------------------------------------------------------


async def test_many_settles_return_one_result_each_in_order(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    a, b, c, d = [await bench.make_claim(type) for type in "abcd"]
    answers = await bench.jobs.settle_many(
        [
            _settle(b, Done(result=b"1")),
            Settle(job_id=new_id(), fence=1, outcome=Done()),
            Settle(job_id=a.job.id, fence=a.fence + 99, outcome=Done()),
            _settle(c, Failed(error="no")),
            Settle(job_id=a.job.id, fence=a.fence, outcome=Done(), tenant=other.id),
            _settle(b, Done(result=b"1")),
            _settle(b, Release()),
            _settle(a, Release()),
            _settle(d, Snooze(delay=5)),
        ]
    )
    assert _statuses(answers) == [
        "succeeded",
        JobNotFound,
        LeaseLost,
        "queued",
        JobNotFound,
        "succeeded",
        LeaseLost,
        "queued",
        "queued",
    ]
    statuses = [(await bench.reload(claim)).status.value for claim in (a, b, c, d)]
    assert statuses == ["queued", "succeeded", "queued", "queued"]


async def test_an_invalid_settle_does_not_affect_others_of_the_call(bench: Bench) -> None:
    a, b = await bench.make_claim("a"), await bench.make_claim("b")
    answers = await bench.jobs.settle_many(
        [
            _settle(a, Done(result=b"{not json")),
            _settle(a, Snooze(delay=-1)),
            Settle(job_id="\ud800", fence=1, outcome=Done()),
            _settle(b, Done(result=b"1")),
            _settle(a, Failed(error="no", exit_code=2**70)),
        ]
    )
    assert _statuses(answers) == [InvalidInput, InvalidInput, JobNotFound, "succeeded", InvalidInput]
    assert (await bench.reload(a)).status is JobStatus.RUNNING


async def test_an_empty_call_of_settles_returns_an_empty_list(bench: Bench) -> None:
    assert await bench.jobs.settle_many([]) == []


async def test_an_attempt_released_after_a_cancel_request_is_canceled(bench: Bench) -> None:
    claim = await bench.make_claim()
    await bench.jobs.cancel(bench.tenant, claim.job.id)
    answer = await bench.jobs.release(claim)
    (attempt,) = await bench.jobs.attempts(bench.tenant, claim.job.id)
    assert (attempt.outcome, attempt.status_after) == (AttemptOutcome.CANCELED, JobStatus.CANCELED)
    assert await bench.jobs.release(claim) == answer
    async with refuses(bench, LeaseLost):
        await bench.jobs.snooze(claim, 0)


async def test_a_timeout_and_another_failure_are_different_outcomes(bench: Bench) -> None:
    claims = [await bench.make_claim() for _ in range(2)]
    for claim, timed_out in zip(claims, (True, False), strict=True):
        answer = await bench.jobs.fail(claim, "too slow", timed_out=timed_out)
        assert await bench.jobs.fail(claim, "too slow", timed_out=timed_out) == answer
        async with refuses(bench, LeaseLost):
            await bench.jobs.fail(claim, "too slow", timed_out=not timed_out)


async def test_settles_of_two_attempts_of_a_job_can_be_in_one_call(bench: Bench) -> None:
    old = await bench.make_claim()
    released = await bench.jobs.release(old)
    (new,) = await bench.jobs.claim("worker", ["noop"])
    answers = await bench.jobs.settle_many([_settle(new, Done()), _settle(old, Release()), _settle(old, Done())])
    assert _statuses(answers) == ["succeeded", "queued", LeaseLost]
    assert answers[1] == released


async def test_hundreds_of_concurrent_settles_are_recorded(bench: Bench) -> None:
    await asyncio.gather(*(bench.make_job() for _ in range(200)))
    claims = await bench.jobs.claim("worker", ["noop"], limit=200)
    await asyncio.gather(
        bench.jobs.settle_many([_settle(claim, Done(result=b"1")) for claim in claims[:130]]),
        *(bench.jobs.complete(claim, 1) for claim in claims[130:]),
    )
    assert (await bench.jobs.summary(bench.tenant)).counts[JobStatus.SUCCEEDED] == 200
    names = Counter(await bench.event_names())
    assert names["job.completed"] == 200


def _settle(claim: Claim, outcome: Outcome) -> Settle:
    return Settle(job_id=claim.job.id, fence=claim.fence, outcome=outcome)


def _statuses(answers: list[Settled | IngotError]) -> list[object]:
    return [answer.status.value if isinstance(answer, Settled) else type(answer) for answer in answers]
