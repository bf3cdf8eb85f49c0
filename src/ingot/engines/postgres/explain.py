"""The state behind an explanation: what a waiting job waits for."""

from __future__ import annotations

import msgspec

from ingot.engines.jobs import scopes_of
from ingot.engines.postgres.connection import Database
from ingot.engines.postgres.context import Context
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.job_reads import may_exist
from ingot.engines.postgres.job_rows import STATUSES, job_of
from ingot.engines.postgres.records import find_record
from ingot.engines.postgres.sql import SQL
from ingot.jobs.limits import ConcurrencyLimits
from ingot.jobs.model import JOBS_AHEAD_MAX, Job, JobStatus, LimitUsage, WaitState
from ingot.jobs.ports import GetWaitState
from ingot.jobs.record_kinds import PAUSE_KIND, pause_from_record
from ingot.kernel.clock import to_datetime, to_datetime_or_none, to_micros


async def get_wait_state(context: Context, command: GetWaitState) -> WaitState | None:
    """Return what could keep a job from running, or `None` if there is no such job."""
    db, lane_cache, tenant = context.database, context.lane_cache, command.tenant
    if not may_exist(context, tenant, command.job_id):
        return None
    rows = await db.read(tenant, SQL.get_job, command.job_id)
    if not rows:
        return None
    job, limit_key = job_of(rows[0]), rows[0]["limit_key"]
    ((now, *maximums, asked_at, asked_with_files_at),) = await db.call(CALL.find_limits, tenant, job.type)
    recorded_at = asked_with_files_at if job.has_files else asked_at
    last_claim_at = max(
        (at for at in (recorded_at, lane_cache.last_request_at(job.type, tenant)) if at is not None), default=None
    )
    state = WaitState(
        job=job,
        now=to_datetime(now),
        limit_key=limit_key,
        last_claim_at=to_datetime_or_none(last_claim_at),
        last_claim_without_files_at=to_datetime_or_none(asked_at if job.has_files else None),
    )
    if job.status is JobStatus.CANCELED or (job.status is JobStatus.RUNNING and job.cancel_requested):
        parents = await db.read(tenant, SQL.failed_parents, job.id)
        ((by,),) = await db.read(tenant, SQL.canceled_by, job.id)
        return msgspec.structs.replace(
            state, parents=[(row["parent"], STATUSES[row["status"]]) for row in parents], canceled_by=by
        )
    if job.status is JobStatus.BLOCKED:
        parents = await db.read(tenant, SQL.open_parents, job.id)
        uploads = await db.read(tenant, SQL.open_uploads, job.id)
        return msgspec.structs.replace(
            state,
            parents=[(row["parent"], STATUSES[row["status"]]) for row in parents],
            uploads=[row["name"] for row in uploads],
        )
    if job.status is not JobStatus.QUEUED:
        return state
    pause = await find_record(db, PAUSE_KIND.name, tenant, job.type)
    return msgspec.structs.replace(
        state,
        jobs_ahead=await _count_ahead(db, job, limit_key),
        pause=None if pause is None else pause_from_record(PAUSE_KIND.decode(pause)),
        limits=await _limit_usage(db, job, limit_key, ConcurrencyLimits(*maximums)),
    )


async def _count_ahead(db: Database, job: Job, limit_key: str) -> int:
    position = (job.priority, to_micros(job.run_at), job.id)
    ((ahead,),) = await db.read(
        job.tenant, SQL.count_ready_before, job.type, job.tenant, limit_key, *position, JOBS_AHEAD_MAX
    )
    return int(ahead)


async def _limit_usage(db: Database, job: Job, limit_key: str, limits: ConcurrencyLimits) -> list[LimitUsage]:
    """Return the limits of a job, from the widest to the narrowest, with the jobs that run under each."""
    usage: list[LimitUsage] = []
    for scope, maximum, type, key in scopes_of(limits, job.type, limit_key):
        ((running, holders),) = await db.read(job.tenant, SQL.running_under_limit, job.tenant, type, key)
        usage.append(LimitUsage(scope=scope, maximum=maximum, running=running, holders=holders or []))
    return usage
