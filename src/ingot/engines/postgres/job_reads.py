"""Reads of jobs. The database shows each read only the rows of its tenant."""

from __future__ import annotations

from typing import Final

import msgspec

from ingot.engines.json_rows import decode
from ingot.engines.postgres.context import Context
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.job_pages import read_counts, read_page, read_tally
from ingot.engines.postgres.job_rows import STATUSES, job_of
from ingot.engines.postgres.lane_cache import NIL_ID
from ingot.engines.postgres.sql import SQL
from ingot.engines.postgres.tenants import check_tenant
from ingot.engines.queue_depth import summary_of
from ingot.jobs import ports
from ingot.jobs.attempt_logs import join_chunks
from ingot.jobs.model import Attempt, Batch, Job, JobLog, JobStatus, Summary
from ingot.kernel.ids import is_id

SUMMARY_LANES_MAX: Final = 1_000  # Lanes that are searched for the oldest ready job.


def may_exist(context: Context, tenant: str, job_id: str) -> bool:
    """Whether such a job can exist: the IDs are valid, and the tenant was not removed."""
    return is_id(tenant) and is_id(job_id) and tenant not in context.lane_cache.removed_tenants


async def get_job(context: Context, command: ports.GetJob) -> Job | None:
    """Return the job with this ID, or `None`."""
    if not may_exist(context, command.tenant, command.job_id):
        return None
    rows = await context.database.read(command.tenant, SQL.get_job, command.job_id)
    return job_of(rows[0]) if rows else None


async def list_jobs(context: Context, command: ports.ListJobs) -> tuple[list[Job], str | None]:
    """Return a page of jobs, newest first, and the position from which the list continues."""
    where, before, limit = command.where, command.before, command.limit
    await check_tenant(context, where.tenant)
    return await context.database.read_snapshot(
        where.tenant, lambda connection: read_page(connection, where, before=before, limit=limit)
    )


async def list_attempts(context: Context, command: ports.ListAttempts) -> list[Attempt]:
    """Return the attempts of a job, oldest first."""
    if not may_exist(context, command.tenant, command.job_id):
        return []
    rows = await context.database.read(command.tenant, SQL.attempts_of_job, command.job_id)
    return [decode(Attempt, text) for (text,) in rows]


async def read_log(context: Context, command: ports.ReadLog) -> JobLog | None:
    """Return the log of an attempt, starting at a character."""
    if not may_exist(context, command.tenant, command.job_id):
        return None
    rows = await context.database.read(
        command.tenant, SQL.logged_attempt, command.job_id, command.attempt, command.after
    )
    if not rows:
        return None
    (row,) = rows
    start, text = join_chunks(list(zip(row["starts"] or (), row["texts"] or (), strict=True)), after=command.after)
    return JobLog(
        job_id=row["job_id"],
        attempt=row["number"],
        fence=row["fence"],
        start=start,
        to=start + len(text),
        text=text,
        live=row["live"],
        attempts=row["attempts"],
        status=STATUSES[row["status"]],
    )


async def summarize_jobs(context: Context, command: ports.SummarizeJobs) -> Summary:
    """Return exact counts of a tenant's jobs by status, and the age of the oldest ready job."""
    tenant = command.tenant
    await check_tenant(context, tenant)
    ((counts_text, oldest, now),) = await context.database.read(
        tenant, SQL.summary_of_tenant, tenant, command.type, SUMMARY_LANES_MAX
    )
    counts = msgspec.json.decode(counts_text or "{}", type=dict[JobStatus, int])
    return summary_of(counts, oldest, now)


async def count_matching_jobs(context: Context, command: ports.CountMatchingJobs) -> tuple[dict[JobStatus, int], bool]:
    """Count the jobs that match a filter by status. Also return whether there may be more."""
    await check_tenant(context, command.where.tenant)
    return await context.database.read_snapshot(
        command.where.tenant, lambda connection: read_tally(connection, command.where)
    )


async def count_jobs(context: Context, command: ports.CountJobs) -> dict[str, dict[JobStatus, int]]:
    """Return exact counts of a tenant's jobs by type and status."""
    await check_tenant(context, command.tenant)
    return await context.database.read_snapshot(
        command.tenant, lambda connection: read_counts(connection, command.tenant)
    )


async def get_batch(context: Context, command: ports.GetBatch) -> Batch | None:
    """Return the counts of a batch by status, or `None` if it has no jobs."""
    tenant, batch = command.tenant, command.batch
    await check_tenant(context, tenant)
    ((total, succeeded, dead, canceled),) = await context.database.read(tenant, SQL.get_batch, tenant, batch)
    unfinished = total - succeeded - dead - canceled
    if total == 0:
        return None
    return Batch(batch=batch, total=total, unfinished=unfinished, succeeded=succeeded, dead=dead, canceled=canceled)


async def list_leases(context: Context, command: ports.ListLeases) -> list[tuple[str, int]]:
    """Return running jobs of a worker, each with its fence."""
    tenant = command.tenant if command.tenant is None or is_id(command.tenant) else NIL_ID
    rows = await context.database.call(CALL.leases_of_worker, command.worker, tenant, command.limit)
    return [(row["id"], row["fence"]) for row in rows]
