"""The log lines of a worker about its attempts: one for each attempt that has ended."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import structlog

from ingot.jobs.model import JobStatus
from ingot.kernel.clock import WallClock, to_datetime
from ingot.kernel.logs import first_line
from ingot.wire.jobs import AttemptFailed, AttemptReleased, AttemptSnoozed, SettleResult
from ingot.worker.attempt import RunningAttempt
from ingot.worker.ports import ReportedOutcome

STILL_RUNNING_HINT: Final = (
    "Its slot is occupied until it ends. Check job.canceled in the handler, or use isolate=True."
)
log = structlog.get_logger("ingot.worker")


def log_settled(attempt: RunningAttempt, outcome: ReportedOutcome, result: SettleResult) -> None:
    """Log how a settled attempt has ended, and what becomes of its job."""
    fields = {**_fields_of(attempt), "outcome": _outcome_name(outcome)}
    duration = _duration_text(attempt)
    if result.code is not None:
        text = f"job not settled after {duration}: {result.detail}"
        log.warning("not_settled", text=text, **fields, code=result.code, detail=result.detail)
    elif result.status is JobStatus.CANCELED:
        log.info("job_canceled", text=f"job canceled after {duration}", **fields)
    elif isinstance(outcome, AttemptFailed):
        _log_failure(attempt, outcome, result, fields)
    elif isinstance(outcome, AttemptSnoozed):
        text = f"job snoozed after {duration}, next try {_time_text(result.run_at)}"
        log.info("job_snoozed", text=text, **fields, next_try=_iso_time(result.run_at))
    elif isinstance(outcome, AttemptReleased):
        log.info("job_released", text=f"job released after {duration}", **fields)
    else:
        log.info("job_succeeded", text=f"job succeeded in {duration}", **fields)


def log_still_running(attempt: RunningAttempt) -> None:
    """Log that a handler has not ended although its attempt has, so that it still occupies its slot."""
    if attempt.thread_future is not None and not attempt.thread_future.done():
        text = "the handler of an ended attempt is still running"
        log.warning("handler_still_running", text=text, **_fields_of(attempt), hint=STILL_RUNNING_HINT)


def log_unsettled(attempt: RunningAttempt) -> None:
    """Log that the worker ends before it could report the outcome of an attempt."""
    text = "job not settled: the server could not be reached. The job runs again when its lease has expired"
    log.warning("not_settled", text=text, **_fields_of(attempt))


def log_lost(attempt: RunningAttempt) -> None:
    """Log that an attempt has lost its lease, so that its outcome is not settled."""
    text = f"job lost after {_duration_text(attempt)}: this worker no longer holds its lease"
    log.warning("job_lost", text=text, **_fields_of(attempt), outcome="lost")


def _log_failure(attempt: RunningAttempt, outcome: AttemptFailed, result: SettleResult, fields: dict[str, Any]) -> None:
    error = first_line(outcome.error)
    fields["error"] = error
    fields |= {} if outcome.exit_code is None else {"exit_code": outcome.exit_code}
    fields |= {} if attempt.stack is None else {"traceback": attempt.stack}
    if result.status is JobStatus.DEAD:
        log.error("job_dead", text=f"job dead: {error} ({_attempt_text(attempt)})", **fields)
        return
    next_try = f"next try {_time_text(result.run_at)}"
    text = f"job failed: {error} ({_attempt_text(attempt)}, {next_try})"
    log.warning("job_failed", text=text, next_try=_iso_time(result.run_at), **fields)


def _fields_of(attempt: RunningAttempt) -> dict[str, Any]:
    job = attempt.job.data
    return {
        "job_id": job.id,
        "job_type": job.type,
        "attempt_no": job.attempts,
        "max_attempts": job.max_attempts,
        "duration_ms": round(1000 * attempt.duration_seconds, 3),
    }


def _outcome_name(outcome: ReportedOutcome) -> str:
    if isinstance(outcome, AttemptFailed) and outcome.timed_out:
        return "timed_out"
    return str(outcome.__struct_config__.tag)


def _attempt_text(attempt: RunningAttempt) -> str:
    """Return the number of the attempt. Attempts that did not fail, such as snoozed ones, do not count."""
    job = attempt.job.data
    failures = job.failures + 1
    if failures == job.attempts:
        return f"attempt {job.attempts} of {job.max_attempts}"
    return f"attempt {job.attempts}, failure {failures} of {job.max_attempts}"


def _duration_text(attempt: RunningAttempt) -> str:
    seconds = attempt.duration_seconds
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _iso_time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _time_text(at: datetime | None) -> str:
    """Return when the next attempt begins, in the time zone of this machine."""
    if at is None:
        return "later"
    local_time, today = at.astimezone(), to_datetime(WallClock().micros()).astimezone().date()
    return f"at {local_time:%H:%M:%S}" if local_time.date() == today else f"on {local_time:%Y-%m-%d at %H:%M:%S}"
