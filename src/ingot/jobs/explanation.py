"""Why is it not running? An answer for any job, in words and as data."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from ingot.jobs.lifecycle import FINISHED
from ingot.jobs.model import JOBS_AHEAD_MAX, Explanation, JobStatus, LimitUsage, Reason, WaitState

CLAIM_INTERVAL_SECONDS_MAX: Final = 90.0  # A worker that waits for work asks at least this often.
NAMES_SHOWN_MAX: Final = 3


def explain(waiting: WaitState) -> Explanation:
    """The reasons, what must change first at the front."""
    job = waiting.job
    if job.status in FINISHED:
        reasons = [Reason(code="finished", message=f"It is {job.status}.", data={"finished_at": job.finished_at})]
    elif job.status is JobStatus.RUNNING:
        reasons = [_running_reason(waiting)]
    elif job.status is JobStatus.BLOCKED:
        reasons = _blocked_reasons(waiting)
    else:
        reasons = _queued_reasons(waiting)
    return Explanation(job_id=job.id, status=job.status, reasons=reasons)


def _running_reason(waiting: WaitState) -> Reason:
    job = waiting.job
    message = f"It runs at worker {job.worker_id}, attempt {job.attempts}."
    if job.cancel_requested:
        message += " It was asked to stop."
    if (until := job.lease_expires_at) is not None and until > waiting.now:
        message += f" Unless that worker is heard of before, it loses the job at {_format_time(until)}."
    elif until is not None:
        message += " Nothing was heard of that worker in time; it loses the job in a moment."
    data = {"worker_id": job.worker_id, "started_at": job.started_at, "lease_expires_at": job.lease_expires_at}
    return Reason(code="running", message=message, data=data)


def _blocked_reasons(waiting: WaitState) -> list[Reason]:
    """What it waits for: files that are still to come, and other jobs."""
    parents, uploads = waiting.parents, waiting.uploads
    if not parents and not uploads:
        message = "All it waited for has ended; it goes on in a moment."
        return [Reason(code="waits_for", message=message, data={"after": []})]
    reasons: list[Reason] = []
    if uploads:
        message = f"It waits for the upload of {_shortened_list(uploads)}."
        reasons.append(Reason(code="waits_for_uploads", message=message, data={"inputs": uploads}))
    if parents:
        message = f"It waits for {_shortened_list([f'{job_id} ({status})' for job_id, status in parents])}."
        reasons.append(Reason(code="waits_for", message=message, data={"after": [job_id for job_id, _ in parents]}))
    return reasons


def _shortened_list(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return ", ".join(names[:NAMES_SHOWN_MAX]) + more


def _queued_reasons(waiting: WaitState) -> list[Reason]:
    """What holds for a queued job: several things may have to change."""
    job = waiting.job
    reasons: list[Reason] = []
    if job.run_at > waiting.now:
        again = job.failures + job.crashes > 0
        what = "Its next try is" if again else "It is scheduled for"
        code = "retrying" if again else "scheduled"
        reasons.append(Reason(code=code, message=f"{what} {_format_time(job.run_at)}.", data={"run_at": job.run_at}))
    if waiting.pause is not None:
        by = f" by {waiting.pause.by}" if waiting.pause.by else ""
        message = f"The type {job.type} is paused{by} since {_format_time(waiting.pause.since)}."
        reasons.append(Reason(code="paused", message=message, data={"type": job.type, "since": waiting.pause.since}))
    reasons += [_limit_reason(limit, job.type) for limit in waiting.limits if limit.running >= limit.maximum]
    if (
        nobody := waiting.last_claim_at is None
        or (waiting.now - waiting.last_claim_at).total_seconds() > CLAIM_INTERVAL_SECONDS_MAX
    ):
        since = "yet" if waiting.last_claim_at is None else f"since {_format_time(waiting.last_claim_at)}"
        message = f"No worker has asked for jobs of the type {job.type} {since}."
        reasons.append(
            Reason(code="no_worker", message=message, data={"type": job.type, "asked_at": waiting.last_claim_at})
        )
    if job.run_at <= waiting.now:
        reasons.append(_queue_position_reason(waiting, None if nobody else waiting.last_claim_at))
    return reasons


def _limit_reason(limit: LimitUsage, type: str) -> Reason:
    whose = {"tenant": "of the tenant", "type": f"of the type {type}", "key": f"of the type {type} with its key"}
    shown = ", ".join(limit.holders[:NAMES_SHOWN_MAX])
    more = " and others" if limit.running > NAMES_SHOWN_MAX else ""
    held = f": {shown}{more}" if shown else ""
    message = f"{limit.running} of {limit.maximum} jobs {whose[limit.scope]} that may run at once are running{held}."
    if limit.maximum == 0:
        message = f"No job {whose[limit.scope]} may run: the limit is 0."
    data = {"most": limit.maximum, "running": limit.running, "holders": limit.holders}
    return Reason(code=f"{limit.scope}_limit", message=message, data=data)


def _queue_position_reason(waiting: WaitState, asked_at: datetime | None) -> Reason:
    ahead = waiting.jobs_ahead
    asked = f" A worker last asked for such jobs at {_format_time(asked_at)}." if asked_at else ""
    whose = "of its type and limit key" if waiting.limit_key else "of its type"
    if ahead == 0:
        message = f"It is the next {whose}, and waits for a worker with a free place."
    elif ahead >= JOBS_AHEAD_MAX:
        message = f"At least {ahead} jobs {whose} go before it."
    else:
        message = f"{ahead} {'job' if ahead == 1 else 'jobs'} {whose} {'goes' if ahead == 1 else 'go'} before it."
    return Reason(code="in_line", message=message + asked, data={"ahead": ahead})


def _format_time(at: datetime) -> str:
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")
