"""Explanations of why a job is not running or how it ended, as text and as data."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from ingot.jobs.lifecycle import FINISHED
from ingot.jobs.model import JOBS_AHEAD_MAX, Explanation, Job, JobStatus, LimitUsage, Reason, WaitState
from ingot.jobs.worker_model import RegisteredWorker, WorkerStatus

CLAIM_INTERVAL_SECONDS_MAX: Final = 90.0  # An idle worker requests jobs at least this often.
NAMES_SHOWN_MAX: Final = 3
WORKERS_SHOWN_MAX: Final = 10
# The remedy for a worker that is not online, by its status. Of several workers, the first of these statuses decides.
REMEDIES: Final = {
    WorkerStatus.SILENT: "Check that the worker is running and can reach the server. If it was killed, start it again.",
    WorkerStatus.DRAINING: "Start another worker, or start this one again after it has exited.",
    WorkerStatus.DISABLED: "Enable the credential of the worker.",
    WorkerStatus.OFFLINE: "Start the worker again.",
}


class KnownWorkers(msgspec.Struct, frozen=True, kw_only=True):
    """The registered workers that matter for an explanation.

    `of_type` are the workers that could get a queued job, or the worker of a running one. `of_tenant` are the workers
    of the tenant, and `elsewhere` workers of other tenants that run the type, each with the slug of its tenant. Both
    are only read if no worker is online. `silent_seconds` is how long after its last heartbeat a worker is silent.
    """

    silent_seconds: float = 0.0
    of_type: Sequence[RegisteredWorker] = ()
    of_tenant: Sequence[RegisteredWorker] = ()
    elsewhere: Sequence[tuple[str, str]] = ()


NO_WORKERS: Final = KnownWorkers()


def explain(
    waiting: WaitState, workers: KnownWorkers = NO_WORKERS, *, named: bool = True, shared_named: bool = True
) -> Explanation:
    """Explain why a job is where it is. The first reason is the one that must change first.

    Workers are only `named`, and shared ones only `shared_named`, if the reader may see them.
    """
    job = waiting.job
    if job.status in FINISHED:
        reasons = [_finished_reason(waiting)]
    elif job.status is JobStatus.RUNNING:
        reasons = [_running_reason(waiting, next(iter(workers.of_type), None))]
    elif job.status is JobStatus.BLOCKED:
        reasons = _blocked_reasons(waiting)
    else:
        reasons = _queued_reasons(waiting, workers, named=named, shared_named=named and shared_named)
    return Explanation(job_id=job.id, status=job.status, reasons=reasons)


def without_other_jobs(waiting: WaitState) -> WaitState:
    """Return the facts without those about jobs of other types, for a reader that may not see them."""
    limits = [
        msgspec.structs.replace(limit, running=limit.maximum if limit.running >= limit.maximum else 0, holders=[])
        if limit.scope == "tenant"
        else limit
        for limit in waiting.limits
    ]
    parents: list[tuple[str, JobStatus | None]] = [(job_id, None) for job_id in waiting.job.after]
    return msgspec.structs.replace(waiting, limits=limits, parents=parents if waiting.parents else [])


def _finished_reason(waiting: WaitState) -> Reason:
    job = waiting.job
    at = "" if job.finished_at is None else f" at {_format_time(job.finished_at)}"
    data: dict[str, Any] = {"finished_at": job.finished_at}
    if job.status is JobStatus.SUCCEEDED:
        message = f"The job succeeded{at}. To run it again, retry it."
    elif job.status is JobStatus.DEAD:
        message = f"The job failed for good{at}. Its last_error states the cause. Fix it, and then retry the job."
    elif waiting.canceled_by is not None:
        message = f"The job was canceled by {waiting.canceled_by}{at}. To run it, retry it."
        data["canceled_by"] = waiting.canceled_by
    elif waiting.parents:
        names = _shortened_list([_parent_name(*parent) for parent in waiting.parents])
        message = f"The job was canceled{at} because it waited for {names}. Retry that job, and then this one."
        data["after"] = [job_id for job_id, _ in waiting.parents]
    elif job.last_error is not None and job.failures + job.crashes == 0:
        message = f"The job was canceled{at}: {job.last_error}."
    else:
        message = f"The job was canceled{at}. To run it, retry it."
    return Reason(code="finished", message=message, data=data)


def _running_reason(waiting: WaitState, worker: RegisteredWorker | None) -> Reason:
    job = waiting.job
    is_silent = worker is not None and worker.status in (WorkerStatus.SILENT, WorkerStatus.OFFLINE)
    silent = f", which has been silent since {_format_time(worker.seen_at)}" if worker is not None and is_silent else ""
    message = f"The job is running on worker {job.worker_id} (attempt {job.attempts}){silent}."
    if job.cancel_requested:
        by = "" if waiting.canceled_by is None else f" by {waiting.canceled_by}"
        message += f" Cancellation was requested{by}; the job waits for the worker to stop it."
    if (lease_end := job.lease_expires_at) is not None and lease_end > waiting.now:
        message += f" If the worker sends no heartbeat, it loses the job at {_format_time(lease_end)}."
        if is_silent:
            message += f" The job is then queued again. {REMEDIES[WorkerStatus.SILENT]}"
    elif lease_end is not None:
        message += (
            f" The worker sent no heartbeat before the lease expired at {_format_time(lease_end)}, and will lose the"
            " job shortly. Check whether the worker is still running and can reach the server."
        )
    data: dict[str, Any] = {
        "worker_id": job.worker_id,
        "started_at": job.started_at,
        "lease_expires_at": job.lease_expires_at,
    }
    if worker is not None:
        data |= {"worker_status": worker.status, "seen_at": worker.seen_at}
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
        names = _shortened_list([_parent_name(*parent) for parent in parents])
        message = f"The job waits for {names} to end. If one of these jobs is not running, explain that job."
        reasons.append(Reason(code="waits_for", message=message, data={"after": [job_id for job_id, _ in parents]}))
    return reasons


def _parent_name(job_id: str, status: JobStatus | None) -> str:
    return job_id if status is None else f"{job_id} ({status})"


def _shortened_list(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return ", ".join(names[:NAMES_SHOWN_MAX]) + more


def _queued_reasons(waiting: WaitState, workers: KnownWorkers, *, named: bool, shared_named: bool) -> list[Reason]:
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
    online = [worker for worker in workers.of_type if worker.status is WorkerStatus.ONLINE]
    has_worker = not _only_without_files(waiting) and (bool(online) or _has_unregistered_worker(waiting, workers))
    if not has_worker:
        reasons.append(_no_worker_reason(waiting, workers, named=named, shared_named=shared_named))
    if job.run_at <= waiting.now:
        # Without a worker, the reason above reports the last claim.
        reasons.append(_queue_position_reason(waiting, waiting.last_claim_at if has_worker else None, len(online)))
    return reasons


def _has_unregistered_worker(waiting: WaitState, workers: KnownWorkers) -> bool:
    """Return whether jobs of the type were requested recently, and not by one of the workers that are not online."""
    last_claim_at = waiting.last_claim_at
    if last_claim_at is None or not _is_recent(last_claim_at, waiting.now):
        return False
    last_seen_at = max((worker.seen_at for worker in workers.of_type), default=None)
    return last_seen_at is None or last_claim_at > last_seen_at + timedelta(seconds=workers.silent_seconds)


def _only_without_files(waiting: WaitState) -> bool:
    """Return whether the job has files, and only workers without access to files requested its type recently."""
    return _is_recent(waiting.last_claim_without_files_at, waiting.now) and not _is_recent(
        waiting.last_claim_at, waiting.now
    )


def _is_recent(last_claim_at: datetime | None, now: datetime) -> bool:
    """Return whether a worker that requests jobs is likely to be still running."""
    return last_claim_at is not None and (now - last_claim_at).total_seconds() <= CLAIM_INTERVAL_SECONDS_MAX


def _not_due_reason(job: Job) -> Reason:
    at = _format_time(job.run_at)
    if job.failures + job.crashes == 0:
        message = f"The job is scheduled for {at}. To run it earlier, reschedule it."
        return Reason(code="scheduled", message=message, data={"run_at": job.run_at})
    failures = "1 failure" if job.failures == 1 else f"{job.failures} failures"
    crashes = "1 crash" if job.crashes == 1 else f"{job.crashes} crashes"
    message = f"The job will be retried at {at}, after {failures} and {crashes}. To retry it earlier, reschedule it."
    return Reason(code="retrying", message=message, data={"run_at": job.run_at})


def _no_worker_reason(waiting: WaitState, workers: KnownWorkers, *, named: bool, shared_named: bool) -> Reason:
    type, last_claim_at = waiting.job.type, waiting.last_claim_at
    data: dict[str, Any] = {"type": type, "asked_at": last_claim_at}
    if _only_without_files(waiting):
        message = (
            f"The job has files, and only workers without access to files requested jobs of type {type} recently."
            " Set INGOT_SERVER_URL and INGOT_TOKEN for a worker that connects to PostgreSQL directly, or start a worker"
            " that uses a server."
        )
        return Reason(code="no_worker", message=message, data=data)
    if workers.of_type:
        status = next(status for status in REMEDIES if any(worker.status is status for worker in workers.of_type))
        visible = [worker for worker in workers.of_type if (shared_named if worker.tenant is None else named)]
        states = _shortened_list([_worker_state(worker, named=worker in visible) for worker in workers.of_type])
        message = f"No worker for jobs of type {type} is online: {states}. {REMEDIES[status]}"
        if named:
            shown = visible[:WORKERS_SHOWN_MAX]
            data["workers"] = [{"id": each.id, "status": each.status, "seen_at": each.seen_at} for each in shown]
        return Reason(code="no_worker", message=message, data=data)
    if last_claim_at is None:
        message = f"No worker has requested jobs of type {type} so far. Start a worker with a handler for this type."
    else:
        message = (
            f"No worker has requested jobs of type {type} since {_format_time(last_claim_at)}."
            " Check that a worker with a handler for this type is running and can reach the server."
        )
    online = [worker for worker in workers.of_tenant if worker.status is WorkerStatus.ONLINE]
    other_types = sorted({other_type for worker in online for other_type in worker.types})
    if named and other_types:
        message += f" The workers of this tenant that are online run other types: {_shortened_list(other_types)}."
        data["other_types"] = other_types[:WORKERS_SHOWN_MAX]
    if workers.elsewhere:
        names = _shortened_list([f"{worker_id} of {slug}" for slug, worker_id in workers.elsewhere])
        message += f" Workers of other tenants run this type, but only for their own tenant: {names}."
        data["elsewhere"] = [{"id": worker_id, "tenant": slug} for slug, worker_id in workers.elsewhere]
    else:
        message += " Workers of other tenants do not run jobs of this tenant."
    return Reason(code="no_worker", message=message, data=data)


def _worker_state(worker: RegisteredWorker, *, named: bool) -> str:
    """Describe why a worker gets no jobs, such as "press-1 has been silent since 2026-01-31T09:00:00Z"."""
    name = worker.id if named else "a worker"
    if worker.status in (WorkerStatus.SILENT, WorkerStatus.OFFLINE):
        return f"{name} has been {worker.status} since {_format_time(worker.seen_at)}"
    return f"{name} is {worker.status}"


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


def _queue_position_reason(waiting: WaitState, last_claim_at: datetime | None, online_workers: int) -> Reason:
    ahead = waiting.jobs_ahead
    same = "of the same type and limit key" if waiting.limit_key else "of the same type"
    if ahead == 0:
        message = f"The job is ready and next among the jobs {same}. It waits for a worker with a free slot."
    else:
        jobs = "1 job" if ahead == 1 else f"{'at least ' if ahead >= JOBS_AHEAD_MAX else ''}{ahead} jobs"
        message = f"The job is ready, behind {jobs} {same}. To run it sooner, start more workers or raise its priority."
    if online_workers:
        are = "1 worker is" if online_workers == 1 else f"{online_workers} workers are"
        message += f" {are} online for this type."
    if last_claim_at is not None:
        message += f" A worker last requested jobs of this type at {_format_time(last_claim_at)}."
    return Reason(code="in_line", message=message, data={"ahead": ahead})


def _format_time(at: datetime) -> str:
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")
