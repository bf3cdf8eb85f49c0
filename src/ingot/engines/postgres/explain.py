"""What keeps a job from running."""

from __future__ import annotations

import msgspec

from ingot.engines.jobs import scopes_of
from ingot.engines.postgres.calls import CALL
from ingot.engines.postgres.connection import Database
from ingot.engines.postgres.context import Context
from ingot.engines.postgres.jobs import can_be
from ingot.engines.postgres.records import find_record
from ingot.engines.postgres.rows import STATUSES, job_of
from ingot.engines.postgres.sql import SQL
from ingot.jobs.limits import Bounds
from ingot.jobs.model import AHEAD_MAX, HeldLimit, Job, JobStatus, Waiting
from ingot.jobs.ports import FindWaiting
from ingot.jobs.records import PAUSE, pause_of
from ingot.kernel.clock import to_datetime, to_datetime_or_none, to_micros


async def find_waiting(context: Context, command: FindWaiting) -> Waiting | None:
    """Look at everything that could be in the way of a job."""
    db, memory, tenant = context.database, context.memory, command.tenant
    if not can_be(context, tenant, command.job_id):
        return None
    rows = await db.read(tenant, SQL.get_job, command.job_id)
    if not rows:
        return None
    job, limit_key = job_of(rows[0]), rows[0]["limit_key"]
    ((now, *most, asked_at),) = await db.call(CALL.find_limits, tenant, job.type)
    asked_at = max((at for at in (asked_at, memory.asked_at(job.type, tenant)) if at is not None), default=None)
    waiting = Waiting(job=job, now=to_datetime(now), limit_key=limit_key, asked_at=to_datetime_or_none(asked_at))
    if job.status is JobStatus.BLOCKED:
        parents = await db.read(tenant, SQL.open_parents, job.id)
        uploads = await db.read(tenant, SQL.open_uploads, job.id)
        return msgspec.structs.replace(
            waiting,
            parents=[(row["parent"], STATUSES[row["status"]]) for row in parents],
            uploads=[row["name"] for row in uploads],
        )
    if job.status is not JobStatus.QUEUED:
        return waiting
    pause = await find_record(db, PAUSE.name, tenant, job.type)
    return msgspec.structs.replace(
        waiting,
        ahead=await _ahead(db, job, limit_key),
        pause=None if pause is None else pause_of(PAUSE.read(pause)),
        limits=await _limits(db, job, limit_key, Bounds(*most)),
    )


async def _ahead(db: Database, job: Job, limit_key: str) -> int:
    position = (job.priority, to_micros(job.run_at), job.id)
    ((ahead,),) = await db.read(job.tenant, SQL.ready_ahead, job.type, job.tenant, limit_key, *position, AHEAD_MAX)
    return int(ahead)


async def _limits(db: Database, job: Job, limit_key: str, bounds: Bounds) -> list[HeldLimit]:
    """The limits there are, from the widest to the narrowest, and who runs under each."""
    limits: list[HeldLimit] = []
    for scope, most, type, key in scopes_of(bounds, job.type, limit_key):
        ((running, holders),) = await db.read(job.tenant, SQL.running_under, job.tenant, type, key)
        limits.append(HeldLimit(scope=scope, most=most, running=running, holders=holders or []))
    return limits
