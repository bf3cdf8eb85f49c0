"""Explanations of why a job is not running, as text and as data."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from ingot.jobs.lifecycle import FINISHED
from ingot.jobs.model import JOBS_AHEAD_MAX, Explanation, Job, JobStatus, LimitUsage, Reason, WaitState

CLAIM_INTERVAL_SECONDS_MAX: Final = 90.0  # An idle worker requests jobs at least this often.
NAMES_SHOWN_MAX: Final = 3


def explain(waiting: WaitState) -> Explanation:
    """Explain why a job is where it is. The first reason is the one that must change first."""
    job = waiting.job
    if job.status in FINISHED:
        reasons = [_finished_reason(job)]
    elif job.status is JobStatus.RUNNING:
        reasons = [_running_reason(waiting)]
    elif job.status is JobStatus.BLOCKED:
        reasons = _blocked_reasons(waiting)
    else:
        reasons = _queued_reasons(waiting)
    return Explanation(job_id=job.id, status=job.status, reasons=reasons)


def _finished_reason(job: Job) -> Reason:
    at = "" if job.finished_at is None else f" at {_format_time(job.finished_at)}"
    if job.status is JobStatus.SUCCEEDED:
        message = f"The job succeeded{at}. To run it again, retry it."
    elif job.status is JobStatus.DEAD:
        message = f"The job failed for good{at}. Its last_error states the cause. Fix it, and then retry the job."
    else:
        message = f"The job was canceled{at}. To run it, retry it."
    return Reason(code="finished", message=message, data={"finished_at": job.finished_at})


def _running_reason(waiting: WaitState) -> Reason:
    job = waiting.job
    message = f"The job is running on worker {job.worker_id} (attempt {job.attempts})."
    if job.cancel_requested:
        message += " Cancellation was requested; the job waits for the worker to stop it."
    if (lease_end := job.lease_expires_at) is not None and lease_end > waiting.now:
        message += f" If the worker sends no heartbeat, it loses the job at {_format_time(lease_end)}."
    elif lease_end is not None:
        message += (
            f" The worker sent no heartbeat before the lease expired at {_format_time(lease_end)}, and will lose the"
            " job shortly. Check whether the worker is still running and can reach the server."
        )
    data = {"worker_id": job.worker_id, "started_at": job.started_at, "lease_expires_at": job.lease_expires_at}
    return Reason(code="running", message=message, data=data)


def _blocked_reasons(waiting: WaitState) -> list[Reason]:
    """Explain which uploads and which other jobs a blocked job waits for."""
    parents, uploads = waiting.parents, waiting.uploads
    if not parents and not uploads:
        message = "Everything that the job waited for has ended. Its status will change shortly."
        return [Reason(code="waits_for", message=message, data={"after": []})]
    reasons: list[Reason] = []
    if uploads:
        message = f"The job waits for the upload of {_shortened_list(uploads)}. Complete the upload to run the job."
        reasons.append(Reason(code="waits_for_uploads", message=message, data={"inputs": uploads}))
    if parents:
        names = _shortened_list([f"{job_id} ({status})" for job_id, status in parents])
        message = f"The job waits for {names} to end. If one of these jobs is not running, explain that job."
        reasons.append(Reason(code="waits_for", message=message, data={"after": [job_id for job_id, _ in parents]}))
    return reasons


def _shortened_list(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return ", ".join(names[:NAMES_SHOWN_MAX]) + more


def _queued_reasons(waiting: WaitState) -> list[Reason]:
    """Explain why a queued job does not start. Several things may have to change before it does."""
    job = waiting.job
    reasons: list[Reason] = []
    if job.run_at > waiting.now:
        reasons.append(_not_due_reason(job))
    if waiting.pause is not None:
        by = f" by {waiting.pause.by}" if waiting.pause.by else ""
        message = (
            f"Jobs of type {job.type} have been paused{by} since {_format_time(waiting.pause.since)}."
            " Resume the type to run them."
        )
        reasons.append(Reason(code="paused", message=message, data={"type": job.type, "since": waiting.pause.since}))
    reasons += [_limit_reason(limit, job.type) for limit in waiting.limits if limit.running >= limit.maximum]
    last_claim_at = waiting.last_claim_at
    if last_claim_at is None or (waiting.now - last_claim_at).total_seconds() > CLAIM_INTERVAL_SECONDS_MAX:
        reasons.append(_no_worker_reason(job.type, last_claim_at))
        last_claim_at = None  # The reason above reports it.
    if job.run_at <= waiting.now:
        reasons.append(_queue_position_reason(waiting, last_claim_at))
    return reasons


def _not_due_reason(job: Job) -> Reason:
    at = _format_time(job.run_at)
    if job.failures + job.crashes == 0:
        message = f"The job is scheduled for {at}. To run it earlier, reschedule it."
        return Reason(code="scheduled", message=message, data={"run_at": job.run_at})
    failures = "1 failure" if job.failures == 1 else f"{job.failures} failures"
    crashes = "1 crash" if job.crashes == 1 else f"{job.crashes} crashes"
    message = f"The job will be retried at {at}, after {failures} and {crashes}. To retry it earlier, reschedule it."
    return Reason(code="retrying", message=message, data={"run_at": job.run_at})


def _no_worker_reason(type: str, last_claim_at: datetime | None) -> Reason:
    if last_claim_at is None:
        message = f"No worker has requested jobs of type {type} so far. Start a worker with a handler for this type."
    else:
        message = (
            f"No worker has requested jobs of type {type} since {_format_time(last_claim_at)}."
            " Check that a worker with a handler for this type is running and can reach the server."
        )
    return Reason(code="no_worker", message=message, data={"type": type, "asked_at": last_claim_at})


def _limit_reason(limit: LimitUsage, type: str) -> Reason:
    jobs, setting = {
        "tenant": ("jobs of the tenant", "max_running_jobs of the tenant"),
        "type": (f"jobs of type {type}", f"max_running in the definition of {type}"),
        "key": (f"jobs of type {type} with the same limit key", f"max_running_per_key in the definition of {type}"),
    }[limit.scope]
    if limit.maximum == 0:
        message = f"No {jobs} can run, because the limit is 0. To run the job, raise {setting}."
    else:
        shown = ", ".join(limit.holders[:NAMES_SHOWN_MAX])
        more = " and others" if limit.running > NAMES_SHOWN_MAX else ""
        holders = f": {shown}{more}" if shown else ""
        message = (
            f"The limit on running {jobs} is reached ({limit.running} of {limit.maximum}){holders}."
            f" Wait until jobs have ended, or raise {setting}."
        )
    data = {"most": limit.maximum, "running": limit.running, "holders": limit.holders}
    return Reason(code=f"{limit.scope}_limit", message=message, data=data)


def _queue_position_reason(waiting: WaitState, last_claim_at: datetime | None) -> Reason:
    ahead = waiting.jobs_ahead
    same = "of the same type and limit key" if waiting.limit_key else "of the same type"
    if ahead == 0:
        message = f"The job is ready and next among the jobs {same}. It waits for a worker with a free slot."
    else:
        jobs = "1 job" if ahead == 1 else f"{'at least ' if ahead >= JOBS_AHEAD_MAX else ''}{ahead} jobs"
        message = f"The job is ready, behind {jobs} {same}. To run it sooner, start more workers or raise its priority."
    if last_claim_at is not None:
        message += f" A worker last requested jobs of this type at {_format_time(last_claim_at)}."
    return Reason(code="in_line", message=message, data={"ahead": ahead})


def _format_time(at: datetime) -> str:
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")
