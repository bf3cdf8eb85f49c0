"""The state machine of jobs, and the function that decides what becomes of a job after an attempt.

blocked ─► queued ─► running ─► succeeded
             ▲  │        │  └──► dead          attempts or crashes used up, or no retry requested
             │  └► canceled ◄┘
             └── retry, snooze, release, lease expiry (from running)
"""

from __future__ import annotations

from typing import Final, Protocol, assert_never

import msgspec

from ingot.jobs.model import (
    AttemptOutcome,
    Backoff,
    Definition,
    Done,
    Failed,
    JobStatus,
    Lost,
    Outcome,
    Release,
    Snooze,
)
from ingot.kernel.clock import MICROS

FINISHED: Final = frozenset({JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED})
UNSUCCESSFUL_OUTCOMES: Final = frozenset({AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT, AttemptOutcome.LOST})

RETRY_AFTER_LOSS_SECONDS_MAX = 5.0
JITTER = 0.25  # Largest random share subtracted from a backoff, so that failed jobs do not all return at once.


class JudgedJob(Protocol):
    """The fields of a running job that `judge` needs."""

    @property
    def failures(self) -> int: ...
    @property
    def crashes(self) -> int: ...
    @property
    def max_attempts(self) -> int: ...
    @property
    def cancel_requested(self) -> bool: ...


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a job after an attempt. `run_at` is set if and only if the job is queued again."""

    status: JobStatus
    outcome: AttemptOutcome
    failures: int
    crashes: int
    run_at: int | None = None
    error: str | None = None


def matches_worker(worker_id: str, worker: str | None) -> bool:
    """Return True if `worker` is `None`, this worker ID, or the worker credential of which it is an instance."""
    return worker is None or worker_id == worker or worker_id.startswith(f"{worker}/")


def judge(
    job: JudgedJob, outcome: Outcome | Lost, definition: Definition, *, now: int, random_fraction: float
) -> Verdict:
    """Decide what becomes of a running job. `random_fraction`, from 0 up to 1, varies the pause before a retry."""
    failures, crashes = job.failures, job.crashes
    retry_at: int | None = now
    error: str | None = None
    status = JobStatus.QUEUED
    match outcome:
        case Done():
            return Verdict(
                status=JobStatus.SUCCEEDED, outcome=AttemptOutcome.SUCCEEDED, failures=failures, crashes=crashes
            )
        case Failed():
            attempt_outcome = AttemptOutcome.TIMED_OUT if outcome.timed_out else AttemptOutcome.FAILED
            error = outcome.error
            failures += 1
            retry_at = now + backoff_micros(definition.backoff, failures, random_fraction=random_fraction)
            if failures >= job.max_attempts or not outcome.retry:
                status = JobStatus.DEAD
        case Lost():
            attempt_outcome = AttemptOutcome.LOST
            crashes += 1
            retry_at = now + int(RETRY_AFTER_LOSS_SECONDS_MAX * random_fraction * MICROS)
            error = f"the lease expired without a heartbeat from the worker (crash {crashes} of {definition.crash_cap})"
            if crashes >= definition.crash_cap:
                status = JobStatus.DEAD
        case Snooze():
            attempt_outcome, retry_at = AttemptOutcome.SNOOZED, now + outcome.delay
        case Release():
            attempt_outcome = AttemptOutcome.CANCELED if job.cancel_requested else AttemptOutcome.RELEASED
        case _:
            assert_never(outcome)
    if job.cancel_requested:
        # Cancellation takes precedence over everything but success, and the attempt then counts against nothing.
        status, failures, crashes = JobStatus.CANCELED, job.failures, job.crashes
    return Verdict(
        status=status,
        outcome=attempt_outcome,
        failures=failures,
        crashes=crashes,
        run_at=retry_at if status is JobStatus.QUEUED else None,
        error=error,
    )


def backoff_micros(backoff: Backoff, failures: int, *, random_fraction: float) -> int:
    """Return the pause after the given number of failures: from 0 to `backoff.max_seconds`."""
    seconds = backoff.first_seconds
    for _ in range(min(failures, 10_000) - 1):
        if seconds >= backoff.max_seconds or backoff.factor <= 1.0:
            break
        seconds *= backoff.factor
    return int(min(seconds, backoff.max_seconds) * (1.0 - JITTER * random_fraction) * MICROS)
