"""Control of jobs: cancel, retry, change."""

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

# A job that is due by the clock of the database may not be by ours. Up to this difference, it is handled as both.
CLOCK_SKEW_MICROS_MAX: Final = MICROS


async def cancel(context: Context, command: CancelJob) -> Job:
    """Cancel a waiting job, or request a running one to stop."""
    return await _call_and_read_job(context, CALL.cancel, command, command.by)


async def retry(context: Context, command: RetryJob) -> Job:
    """Queue a finished job again."""
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
    """Change a waiting job, or the tags of any job."""
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
    lane_cache = context.lane_cache
    if not may_exist(context, command.tenant, command.job_id):
        raise JobNotFound(f"there is no job {command.job_id[:64]!r} in this tenant")
    results, rows = await context.database.call_and_read(
        call, (command.tenant, command.job_id, *values), command.tenant, SQL.get_job, command.job_id, once=once
    )
    if not rows:  # The finished job has just been removed.
        raise JobNotFound(f"there is no job {command.job_id[:64]!r} in this tenant")
    job = job_of(rows[0])
    if job.status is JobStatus.CANCELED:
        if results[0][0]:
            lane_cache.notify_jobs_canceled(job.type, 1)
        lane_cache.notify_jobs_ended([job.id], [] if job.batch is None else [(job.tenant, job.batch)])
    if job.status is JobStatus.QUEUED:
        run_at, now = to_micros(job.run_at), lane_cache.now()
        if run_at <= now + CLOCK_SKEW_MICROS_MAX:
            lane_cache.announce_ready(Lane(job.type, job.tenant, rows[0]["limit_key"]), 1)
        if run_at > now:
            lane_cache.record_due_time(run_at)
    return job
