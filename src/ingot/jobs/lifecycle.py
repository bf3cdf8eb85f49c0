"""The life of a job, and one pure function that decides how an attempt ends.

blocked ─► queued ─► running ─► succeeded
             ▲  │        │  └──► dead          attempts or crashes used up, or told not to retry
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

RETRY_AFTER_LOSS_SECONDS_MAX = 5.0
JITTER = 0.25  # The share of a backoff that chance may take away, so that a failed batch does not return as one.


class JudgedJob(Protocol):
    """What the judge looks at in a running job."""

    @property
    def failures(self) -> int: ...
    @property
    def crashes(self) -> int: ...
    @property
    def max_attempts(self) -> int: ...
    @property
    def cancel_requested(self) -> bool: ...


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job goes after an attempt. `run_at` is set exactly when it is queued again."""

    status: JobStatus
    outcome: AttemptOutcome
    failures: int
    crashes: int
    run_at: int | None = None
    error: str | None = None


def matches_worker(worker_id: str, worker: str | None) -> bool:
    """Whether this is the worker, or an instance of the credential, that a call is restricted to."""
    return worker is None or worker_id == worker or worker_id.startswith(f"{worker}/")


def judge(
    job: JudgedJob, outcome: Outcome | Lost, definition: Definition, *, now: int, random_fraction: float
) -> Verdict:
    """Decide what becomes of a running job. `spread`, from 0 up to 1, is the chance that jitter uses."""
    failures, crashes = job.failures, job.crashes
    retry_at: int | None = now
    error: str | None = None
    end = JobStatus.QUEUED
    match outcome:
        case Done():
            return Verdict(
                status=JobStatus.SUCCEEDED, outcome=AttemptOutcome.SUCCEEDED, failures=failures, crashes=crashes
            )
        case Failed():
            said, error = AttemptOutcome.FAILED, outcome.error
            failures += 1
            retry_at = now + backoff_micros(definition.backoff, failures, random_fraction=random_fraction)
            if failures >= job.max_attempts or not outcome.retry:
                end = JobStatus.DEAD
        case Lost():
            said = AttemptOutcome.LOST
            crashes += 1
            retry_at = now + int(RETRY_AFTER_LOSS_SECONDS_MAX * random_fraction * MICROS)
            error = f"the worker went silent and its lease ran out ({crashes} of {definition.crash_cap})"
            if crashes >= definition.crash_cap:
                end = JobStatus.DEAD
        case Snooze():
            said, retry_at = AttemptOutcome.SNOOZED, now + outcome.delay
        case Release():
            said = AttemptOutcome.RELEASED
        case _:
            assert_never(outcome)
    if job.cancel_requested:
        # A cancel wins over everything but success, and an attempt that ended by it counts against nothing.
        end, failures, crashes = JobStatus.CANCELED, job.failures, job.crashes
    return Verdict(
        status=end,
        outcome=said,
        failures=failures,
        crashes=crashes,
        run_at=retry_at if end is JobStatus.QUEUED else None,
        error=error,
    )


def backoff_micros(backoff: Backoff, failures: int, *, random_fraction: float) -> int:
    """How long to wait after the given number of failures: finite, never negative, never over the cap."""
    seconds = backoff.first_seconds
    for _ in range(min(failures, 10_000) - 1):
        if seconds >= backoff.max_seconds or backoff.factor <= 1.0:
            break
        seconds *= backoff.factor
    return int(min(seconds, backoff.max_seconds) * (1.0 - JITTER * random_fraction) * MICROS)
