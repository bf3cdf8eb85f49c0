"""Verdicts: how an attempt ends, for every outcome, with and without a cancel, below and at the caps."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest

from ingot.jobs import AttemptOutcome, Backoff, Definition, Done, Failed, JobStatus, Outcome, Release, Snooze
from ingot.jobs.lifecycle import FINISHED, RETRY_AFTER_LOSS_SECONDS_MAX, Verdict, judge
from ingot.jobs.model import Lost
from ingot.kernel.clock import MICROS
from tests.job_transitions import TRANSITIONS

NOW = 1_800_000_000 * MICROS
DEFINITION = Definition(type="noop", crash_cap=3, backoff=Backoff(first_seconds=8, factor=2, max_seconds=100))
QUEUED, SUCCEEDED, DEAD, CANCELED = JobStatus.QUEUED, JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED
OUTCOMES: list[Outcome | Lost] = [
    Done(),
    Done(result=b"1"),
    Failed(error="e"),
    Failed(error="e", retry=False),
    Failed(error="e", timed_out=True),
    Snooze(delay=7),
    Release(),
    Lost(),
]


class RunningJob(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a running job that a verdict depends on."""

    failures: int = 0
    crashes: int = 0
    max_attempts: int = 5
    cancel_requested: bool = False


def _judge(job: RunningJob, outcome: Outcome | Lost, *, spread: float = 0.0) -> Verdict:
    return judge(job, outcome, DEFINITION, now=NOW, random_fraction=spread)


@pytest.mark.parametrize(
    ("outcome", "failures", "crashes", "status", "run_at", "counts"),
    [
        (Done(), 0, 0, SUCCEEDED, None, (0, 0)),
        (Done(), 4, 2, SUCCEEDED, None, (4, 2)),
        (Failed(error="e"), 0, 0, QUEUED, NOW + 8 * MICROS, (1, 0)),
        (Failed(error="e"), 2, 2, QUEUED, NOW + 32 * MICROS, (3, 2)),
        (Failed(error="e"), 3, 0, QUEUED, NOW + 64 * MICROS, (4, 0)),
        (Failed(error="e"), 4, 0, DEAD, None, (5, 0)),
        (Failed(error="e"), 9, 0, DEAD, None, (10, 0)),
        (Failed(error="e", retry=False), 0, 0, DEAD, None, (1, 0)),
        (Failed(error="e", timed_out=True), 2, 2, QUEUED, NOW + 32 * MICROS, (3, 2)),
        (Failed(error="e", timed_out=True), 4, 0, DEAD, None, (5, 0)),
        (Snooze(delay=90), 4, 2, QUEUED, NOW + 90, (4, 2)),
        (Snooze(delay=0), 0, 0, QUEUED, NOW, (0, 0)),
        (Release(), 4, 2, QUEUED, NOW, (4, 2)),
        (Lost(), 4, 0, QUEUED, NOW, (4, 1)),
        (Lost(), 0, 1, QUEUED, NOW, (0, 2)),
        (Lost(), 0, 2, DEAD, None, (0, 3)),
        (Lost(), 0, 7, DEAD, None, (0, 8)),
    ],
)
def test_every_outcome_has_its_verdict(
    outcome: Outcome | Lost,
    failures: int,
    crashes: int,
    status: JobStatus,
    run_at: int | None,
    counts: tuple[int, int],
) -> None:
    verdict = _judge(RunningJob(failures=failures, crashes=crashes), outcome)
    assert (verdict.status, verdict.run_at, (verdict.failures, verdict.crashes)) == (status, run_at, counts)


@pytest.mark.parametrize(("failures", "crashes"), [(0, 0), (4, 2), (9, 9)])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_cancel_overrides_every_outcome_except_success(outcome: Outcome | Lost, failures: int, crashes: int) -> None:
    job = RunningJob(failures=failures, crashes=crashes, cancel_requested=True)
    verdict = _judge(job, outcome)
    expected = SUCCEEDED if isinstance(outcome, Done) else CANCELED
    actual = (verdict.status, verdict.failures, verdict.crashes, verdict.run_at)
    assert actual == (expected, failures, crashes, None)


@pytest.mark.parametrize(
    ("outcome", "expected", "expected_after_cancel", "error"),
    [
        (Done(), AttemptOutcome.SUCCEEDED, AttemptOutcome.SUCCEEDED, None),
        (Failed(error="broken"), AttemptOutcome.FAILED, AttemptOutcome.FAILED, "broken"),
        (Failed(error="slow", timed_out=True), AttemptOutcome.TIMED_OUT, AttemptOutcome.TIMED_OUT, "slow"),
        (Snooze(delay=1), AttemptOutcome.SNOOZED, AttemptOutcome.SNOOZED, None),
        (Release(), AttemptOutcome.RELEASED, AttemptOutcome.CANCELED, None),
    ],
)
def test_a_verdict_has_the_outcome_that_the_worker_reported(
    outcome: Outcome, expected: AttemptOutcome, expected_after_cancel: AttemptOutcome, error: str | None
) -> None:
    for cancel_requested, expected_outcome in ((False, expected), (True, expected_after_cancel)):
        verdict = _judge(RunningJob(cancel_requested=cancel_requested), outcome)
        assert (verdict.outcome, verdict.error) == (expected_outcome, error)


def test_the_error_of_a_lost_attempt_counts_crashes() -> None:
    verdict = _judge(RunningJob(crashes=1), Lost())
    assert verdict.outcome is AttemptOutcome.LOST
    assert "(crash 2 of 3)" in (verdict.error or "")


@pytest.mark.parametrize("spread", [0.0, 0.5, 0.999999])
def test_a_lost_job_returns_within_five_seconds(spread: float) -> None:
    run_at = _judge(RunningJob(), Lost(), spread=spread).run_at
    assert run_at == NOW + int(RETRY_AFTER_LOSS_SECONDS_MAX * spread * MICROS)
    assert NOW <= run_at < NOW + 5 * MICROS


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_verdict_is_a_valid_transition_with_a_time_only_if_queued(outcome: Outcome | Lost) -> None:
    for canceled, failures, crashes, spread in product([False, True], [0, 1, 4, 5], [0, 2, 3], [0.0, 0.9]):
        job = RunningJob(failures=failures, crashes=crashes, cancel_requested=canceled)
        verdict = _judge(job, outcome, spread=spread)
        assert verdict.status in TRANSITIONS[JobStatus.RUNNING]
        assert (verdict.run_at is not None) == (verdict.status is QUEUED)
        assert verdict.run_at is None or verdict.run_at >= NOW
        assert (verdict.failures - failures) + (verdict.crashes - crashes) in (0, 1)


def test_a_finished_job_can_only_become_queued() -> None:
    assert {status: TRANSITIONS[status] for status in FINISHED} == {status: {QUEUED} for status in FINISHED}


def test_every_status_has_transitions_and_none_to_itself() -> None:
    assert set(TRANSITIONS) == set(JobStatus)
    assert not [status for status, after in TRANSITIONS.items() if status in after]


def test_no_status_becomes_blocked_and_only_running_jobs_succeed() -> None:
    into = {status: {before for before, after in TRANSITIONS.items() if status in after} for status in JobStatus}
    assert (into[JobStatus.BLOCKED], into[SUCCEEDED]) == (set(), {JobStatus.RUNNING})
    assert into[JobStatus.RUNNING] == {QUEUED}
