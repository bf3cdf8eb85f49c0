"""Canceling, retrying and changing jobs on request."""

from __future__ import annotations

from ingot.engines.sqlite.dependents import close_edges_of, release_dependents
from ingot.engines.sqlite.job_files import drop_input_uploads
from ingot.engines.sqlite.job_rows import JobState
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.tenant_caps import TenantCaps
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.jobs.errors import DuplicateJob, JobFinished, JobNotFinished, JobNotQueued
from ingot.jobs.files import FileNotFound
from ingot.jobs.lifecycle import FINISHED
from ingot.jobs.model import Job, JobStatus
from ingot.jobs.ports import CancelJob, ChangeJob, RetryJob


def cancel_job(tx: Transaction, command: CancelJob) -> Job:
    """Cancel a waiting job, or request a running one to stop."""
    state = tx.job_state(command.tenant, command.job_id)
    if state.status in (JobStatus.SUCCEEDED, JobStatus.DEAD):
        raise JobFinished(f"the job is {state.status}")
    if state.status is JobStatus.RUNNING and not state.cancel_requested:
        state.cancel_requested = True
        tx.emit("job.updated", state)
        tx.save_states([state])
        tx.execute(SQL.set_canceled_by, state.number, command.by)
    elif state.status in (JobStatus.QUEUED, JobStatus.BLOCKED):
        before = state.status
        state.status, state.finished_at = JobStatus.CANCELED, tx.now
        tx.record_transition(state, before, state.status)
        tx.emit("job.canceled", state)
        tx.save_states([state])
        tx.execute(SQL.set_canceled_by, state.number, command.by)
        if before is JobStatus.BLOCKED:
            close_edges_of(tx, {state.number})
            drop_input_uploads(tx, [state])
        release_dependents(tx)
    return tx.get_job(state.number)


def retry_job(tx: Transaction, command: RetryJob) -> Job:
    """Put a finished job back in the queue."""
    state = tx.job_state(command.tenant, command.job_id)
    if state.status not in FINISHED:
        raise JobNotFinished(f"the job is {state.status}")
    if missing := tx.read(list[str], SQL.missing_inputs, state.number):
        raise FileNotFound(
            f"the input {missing[0]} was never uploaded",
            hint="Create a new job and upload all of its inputs. Nothing was changed.",
        )
    _check_dedupe_key(tx, state)
    TenantCaps(tx, {state.tenant}).check_and_count_jobs({state.tenant: 1})
    before = state.status
    state.status, state.finished_at, state.cancel_requested = JobStatus.QUEUED, None, False
    if command.reset_attempts:
        state.failures = state.crashes = 0
    state.priority = command.priority or state.priority
    state.max_attempts = command.max_attempts or state.max_attempts
    tx.queue_job(state, max(tx.now, command.run_at or 0))
    tx.record_transition(state, before, state.status)
    tx.emit("job.retried", state)
    tx.save_states([state])
    return tx.get_job(state.number)


def change_job(tx: Transaction, command: ChangeJob) -> Job:
    """Change a waiting job, or the tags of any job."""
    state = tx.job_state(command.tenant, command.job_id)
    is_rescheduled = (command.priority, command.run_at, command.max_attempts) != (None, None, None)
    if is_rescheduled and state.status not in (JobStatus.QUEUED, JobStatus.BLOCKED):
        raise JobNotQueued(f"the job is {state.status}")
    if is_rescheduled:
        state.priority = command.priority or state.priority
        state.max_attempts = command.max_attempts or state.max_attempts
        run_at = state.run_at if command.run_at is None else max(tx.now, command.run_at)
        if state.status is JobStatus.QUEUED:
            tx.queue_job(state, run_at)
        else:
            state.run_at = run_at
        tx.save_states([state])
    if command.tags is not None:
        tx.execute(SQL.delete_tags, state.number)
        tx.write_rows(
            SQL.insert_tags, [(state.number, tag, tx.writer_state.tenants[state.tenant]) for tag in command.tags]
        )
    if is_rescheduled or command.tags is not None:
        tx.emit("job.updated", state)
    return tx.get_job(state.number)


def _check_dedupe_key(tx: Transaction, state: JobState) -> None:
    if state.dedupe_key is None:
        return
    for _, holder in tx.read(
        list[tuple[int, str]],
        SQL.jobs_by_dedupe_key,
        as_json([(tx.writer_state.tenants[state.tenant], state.dedupe_key)]),
    ):
        raise DuplicateJob(f"the unfinished job {holder} holds this job's dedupe key", holder_id=holder)
