"""Why is it not running? An answer for any job, in words and as data."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from ingot.jobs.lifecycle import FINISHED
from ingot.jobs.model import AHEAD_MAX, Explanation, HeldLimit, JobStatus, Reason, Waiting

ASKED_SECONDS_MAX: Final = 90.0  # A worker that waits for work asks at least this often.
SHOWN_MAX: Final = 3


def explain(waiting: Waiting) -> Explanation:
    """The reasons, what must change first at the front."""
    job = waiting.job
    if job.status in FINISHED:
        reasons = [Reason(code="finished", message=f"It is {job.status}.", data={"finished_at": job.finished_at})]
    elif job.status is JobStatus.RUNNING:
        reasons = [_running(waiting)]
    elif job.status is JobStatus.BLOCKED:
        reasons = _blocked(waiting)
    else:
        reasons = _queued(waiting)
    return Explanation(job_id=job.id, status=job.status, reasons=reasons)


def _running(waiting: Waiting) -> Reason:
    job = waiting.job
    message = f"It runs at worker {job.worker_id}, attempt {job.attempts}."
    if job.cancel_requested:
        message += " It was asked to stop."
    if (until := job.lease_expires_at) is not None and until > waiting.now:
        message += f" Unless that worker is heard of before, it loses the job at {_time(until)}."
    elif until is not None:
        message += " Nothing was heard of that worker in time; it loses the job in a moment."
    data = {"worker_id": job.worker_id, "started_at": job.started_at, "lease_expires_at": job.lease_expires_at}
    return Reason(code="running", message=message, data=data)


def _blocked(waiting: Waiting) -> list[Reason]:
    """What it waits for: files that are still to come, and other jobs."""
    parents, uploads = waiting.parents, waiting.uploads
    if not parents and not uploads:
        message = "All it waited for has ended; it goes on in a moment."
        return [Reason(code="waits_for", message=message, data={"after": []})]
    reasons: list[Reason] = []
    if uploads:
        message = f"It waits for the upload of {_some(uploads)}."
        reasons.append(Reason(code="waits_for_uploads", message=message, data={"inputs": uploads}))
    if parents:
        message = f"It waits for {_some([f'{job_id} ({status})' for job_id, status in parents])}."
        reasons.append(Reason(code="waits_for", message=message, data={"after": [job_id for job_id, _ in parents]}))
    return reasons


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return ", ".join(names[:SHOWN_MAX]) + more


def _queued(waiting: Waiting) -> list[Reason]:
    """What holds for a queued job: several things may have to change."""
    job = waiting.job
    reasons: list[Reason] = []
    if job.run_at > waiting.now:
        again = job.failures + job.crashes > 0
        what = "Its next try is" if again else "It is scheduled for"
        code = "retrying" if again else "scheduled"
        reasons.append(Reason(code=code, message=f"{what} {_time(job.run_at)}.", data={"run_at": job.run_at}))
    if waiting.pause is not None:
        by = f" by {waiting.pause.by}" if waiting.pause.by else ""
        message = f"The type {job.type} is paused{by} since {_time(waiting.pause.since)}."
        reasons.append(Reason(code="paused", message=message, data={"type": job.type, "since": waiting.pause.since}))
    reasons += [_limit(limit, job.type) for limit in waiting.limits if limit.running >= limit.most]
    if nobody := waiting.asked_at is None or (waiting.now - waiting.asked_at).total_seconds() > ASKED_SECONDS_MAX:
        since = "yet" if waiting.asked_at is None else f"since {_time(waiting.asked_at)}"
        message = f"No worker has asked for jobs of the type {job.type} {since}."
        reasons.append(Reason(code="no_worker", message=message, data={"type": job.type, "asked_at": waiting.asked_at}))
    if job.run_at <= waiting.now:
        reasons.append(_in_line(waiting, None if nobody else waiting.asked_at))
    return reasons


def _limit(limit: HeldLimit, type: str) -> Reason:
    whose = {"tenant": "of the tenant", "type": f"of the type {type}", "key": f"of the type {type} with its key"}
    shown = ", ".join(limit.holders[:SHOWN_MAX])
    more = " and others" if limit.running > SHOWN_MAX else ""
    held = f": {shown}{more}" if shown else ""
    message = f"{limit.running} of {limit.most} jobs {whose[limit.scope]} that may run at once are running{held}."
    if limit.most == 0:
        message = f"No job {whose[limit.scope]} may run: the limit is 0."
    data = {"most": limit.most, "running": limit.running, "holders": limit.holders}
    return Reason(code=f"{limit.scope}_limit", message=message, data=data)


def _in_line(waiting: Waiting, asked_at: datetime | None) -> Reason:
    ahead = waiting.ahead
    asked = f" A worker last asked for such jobs at {_time(asked_at)}." if asked_at else ""
    whose = "of its type and limit key" if waiting.limit_key else "of its type"
    if ahead == 0:
        message = f"It is the next {whose}, and waits for a worker with a free place."
    elif ahead >= AHEAD_MAX:
        message = f"At least {ahead} jobs {whose} go before it."
    else:
        message = f"{ahead} {'job' if ahead == 1 else 'jobs'} {whose} {'goes' if ahead == 1 else 'go'} before it."
    return Reason(code="in_line", message=message + asked, data={"ahead": ahead})


def _time(at: datetime) -> str:
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")
