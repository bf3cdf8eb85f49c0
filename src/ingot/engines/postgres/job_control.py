"""Steering jobs from outside: cancel, retry, change."""

from __future__ import annotations

from typing import Any, Final

from ingot.engines.postgres.context import Context
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.job_reads import may_exist
from ingot.engines.postgres.job_rows import job_of
from ingot.engines.postgres.sql import SQL
from ingot.jobs.errors import JobNotFound
from ingot.jobs.lanes import Lane
from ingot.jobs.model import Job, JobStatus
from ingot.jobs.ports import CancelJob, ChangeJob, RetryJob
from ingot.kernel.clock import MICROS, to_micros

CLOCK_SKEW_MICROS_MAX: Final = (
    MICROS  # What is due by the database's clock may seem not to be by ours, and is told either way.
)


async def cancel(context: Context, command: CancelJob) -> Job:
    """Cancel a waiting job, ask a running one to stop."""
    return await _call_and_read_job(context, CALL.cancel, command)


async def retry(context: Context, command: RetryJob) -> Job:
    """Put a finished job back in the queue."""
    return await _call_and_read_job(
        context,
        CALL.retry,
        command,
        command.reset_attempts,
        command.priority,
        command.max_attempts,
        command.run_at,
        once=True,
    )


async def change(context: Context, command: ChangeJob) -> Job:
    """Change a waiting job, or the tags of any."""
    return await _call_and_read_job(
        context,
        CALL.change,
        command,
        command.priority,
        command.run_at,
        command.max_attempts,
        None if command.tags is None else list(command.tags),
    )


async def _call_and_read_job(
    context: Context, call: str, command: CancelJob | RetryJob | ChangeJob, *values: Any, once: bool = False
) -> Job:
    memory = context.lane_cache
    if not may_exist(context, command.tenant, command.job_id):
        raise JobNotFound(f"there is no job {command.job_id[:64]!r} in this tenant")
    called, rows = await context.database.call_and_read(
        call, (command.tenant, command.job_id, *values), command.tenant, SQL.get_job, command.job_id, once=once
    )
    if not rows:  # It was finished, and has been removed since.
        raise JobNotFound(f"there is no job {command.job_id[:64]!r} in this tenant")
    job = job_of(rows[0])
    if job.status is JobStatus.CANCELED:
        if called[0][0]:
            memory.notify_jobs_canceled(job.type, 1)
        memory.notify_jobs_ended([job.id], [] if job.batch is None else [(job.tenant, job.batch)])
    if job.status is JobStatus.QUEUED:
        run_at, now = to_micros(job.run_at), memory.now()
        if run_at <= now + CLOCK_SKEW_MICROS_MAX:
            memory.announce_ready(Lane(job.type, job.tenant, rows[0]["limit_key"]), 1)
        if run_at > now:
            memory.record_due_time(run_at)
    return job
