"""Steering jobs from outside: cancel, retry, change."""

from __future__ import annotations

from typing import Any, Final

from ingot.engines.postgres.connection import Database
from ingot.engines.postgres.memory import Memory
from ingot.engines.postgres.rows import job_of
from ingot.engines.postgres.sql import SQL
from ingot.jobs.errors import JobNotFound
from ingot.jobs.lanes import Lane
from ingot.jobs.model import Job, JobStatus
from ingot.jobs.ports import CancelJob, ChangeJob, RetryJob
from ingot.kernel.clock import MICROS, to_micros
from ingot.kernel.ids import is_id

CLOCKS_DIFFER: Final = MICROS  # What is due by the database's clock may seem not to be by ours, and is told either way.


async def cancel(db: Database, memory: Memory, command: CancelJob) -> Job:
    """Cancel a waiting job, ask a running one to stop."""
    return await _call(db, memory, "SELECT ingot.cancel($1, $2)", command)


async def retry(db: Database, memory: Memory, command: RetryJob) -> Job:
    """Put a finished job back in the queue."""
    return await _call(
        db,
        memory,
        "SELECT ingot.retry($1, $2, $3, $4, $5, $6)",
        command,
        command.reset_attempts,
        command.priority,
        command.max_attempts,
        command.run_at,
        once=True,
    )


async def change(db: Database, memory: Memory, command: ChangeJob) -> Job:
    """Change a waiting job, or the tags of any."""
    return await _call(
        db,
        memory,
        "SELECT ingot.change($1, $2, $3, $4, $5, $6)",
        command,
        command.priority,
        command.run_at,
        command.max_attempts,
        None if command.tags is None else list(command.tags),
    )


async def _call(
    db: Database, memory: Memory, call: str, command: CancelJob | RetryJob | ChangeJob, *values: Any, once: bool = False
) -> Job:
    if not (is_id(command.tenant) and is_id(command.job_id)) or command.tenant in memory.removed:
        raise JobNotFound(f"there is no job {command.job_id[:64]!r} in this tenant")
    called, rows = await db.call_and_read(
        call, (command.tenant, command.job_id, *values), command.tenant, SQL.get_job, command.job_id, once=once
    )
    if not rows:  # It was finished, and has been removed since.
        raise JobNotFound(f"there is no job {command.job_id[:64]!r} in this tenant")
    job = job_of(rows[0])
    if job.status is JobStatus.CANCELED:
        if called[0][0]:
            memory.tell_canceled(job.type, 1)
        memory.ended([job.id], [] if job.batch is None else [(job.tenant, job.batch)])
    if job.status is JobStatus.QUEUED:
        run_at, now = to_micros(job.run_at), memory.now()
        if run_at <= now + CLOCKS_DIFFER:
            memory.add(Lane(job.type, job.tenant, rows[0]["limit_key"]), 1)
        if run_at > now:
            memory.due_at(run_at)
    return job
