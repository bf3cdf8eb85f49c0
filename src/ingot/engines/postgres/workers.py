"""Workers: who is there, and what they hold."""

from __future__ import annotations

from typing import Final

from ingot.engines.postgres.context import Context
from ingot.engines.postgres.function_calls import CALL, json_text
from ingot.engines.postgres.settle import leases_of, record_ended_attempts
from ingot.engines.postgres.tenants import check_tenant, check_tenant_id
from ingot.engines.worker_rows import WorkerRow, lease_status
from ingot.jobs import ports
from ingot.jobs.errors import WorkerNotFound
from ingot.jobs.worker_model import HeartbeatAnswer, LeaseStatus, RegisteredWorker, WorkerKey, WorkerMaintenanceResult
from ingot.kernel.clock import to_datetime
from ingot.kernel.ids import is_id

RELEASE_JOBS_MAX: Final = 1000
NEVER: Final = 2**61


async def register(context: Context, command: ports.RegisterWorker) -> RegisteredWorker:
    """Keep a worker, or what it says of itself now."""
    check_tenant_id(command.tenant)
    row = (list(command.types), command.hostname, command.version, command.metadata, command.by)
    known = await context.fetch(WorkerRow, CALL.register_worker, command.tenant, command.worker_id, *row)
    return known.worker()


async def heartbeat(context: Context, command: ports.WorkerHeartbeat) -> HeartbeatAnswer:
    """Renew what a worker names, give back what it does not, and note that it lives."""
    beats = command.beats
    rows = await context.database.call(
        CALL.hear_worker,
        *_worker_key(command.tenant, command.worker_id),
        command.grace,
        command.record_seen_after,
        RELEASE_JOBS_MAX,
        *leases_of(beats),
        [beat.lease for beat in beats],
        [beat.percent for beat in beats],
        [beat.stage for beat in beats],
        [beat.worker for beat in beats],
    )
    jobs = [LeaseStatus(job_id=beat.job_id, fence=beat.fence) for beat in beats]
    drain = False
    for row in rows:
        if row["place"] is not None:
            context.lane_cache.record_expiry(row["expires_at"])
            place, expires_at = row["place"] - 1, to_datetime(row["expires_at"])
            jobs[place] = lease_status(beats[place], expires_at, cancel=row["cancel_requested"])
        elif row["draining"] is not None:
            drain = row["draining"]
        else:
            record_ended_attempts(context.lane_cache, row)
    return HeartbeatAnswer(jobs=jobs, drain=drain)


async def drain(context: Context, command: ports.DrainWorker) -> RegisteredWorker:
    """Have a worker take no more work."""
    key, act = _worker_key(command.tenant, command.worker_id), json_text(command.act)
    return (await context.fetch(WorkerRow, CALL.drain_worker, *key, act)).worker()


async def remove(context: Context, command: ports.RemoveWorker) -> bool:
    """Give back what a worker holds, and forget it."""
    gone = False
    key, act = _worker_key(command.tenant, command.worker_id), json_text(command.act)
    for row in await context.database.call(CALL.remove_worker, *key, command.limit, act):
        if row["gone"] is not None:
            gone = row["gone"]
        else:
            record_ended_attempts(context.lane_cache, row)
    return gone


async def maintain(context: Context, command: ports.MaintainWorkers) -> WorkerMaintenanceResult:
    """Take the silent for offline, and forget those that stayed so."""
    silent_after = command.offline_after if context.lane_cache.now() >= context.lane_cache.sweep_from else NEVER
    ((silent, forgotten),) = await context.database.call(
        CALL.tend_workers, silent_after, command.remove_after, command.limit
    )
    return WorkerMaintenanceResult(marked_offline=silent, removed=forgotten, more=command.limit in (silent, forgotten))


async def get_worker(context: Context, command: ports.GetWorker) -> RegisteredWorker | None:
    """One worker."""
    if command.tenant is not None and not is_id(command.tenant):
        return None
    known = await context.find(WorkerRow, CALL.find_worker, command.tenant, command.worker_id)
    return None if known is None else known.worker()


async def list_workers(context: Context, command: ports.ListWorkers) -> list[RegisteredWorker]:
    """Workers of a tenant, or the shared ones."""
    if command.tenant is not None:
        await check_tenant(context, command.tenant)
    row = (command.tenant, command.after or "", command.limit)
    return [known.worker() for known in await context.find_all(WorkerRow, CALL.list_workers, *row)]


async def list_draining(context: Context, _: ports.ListDrainingWorkers) -> list[WorkerKey]:
    """All that are to take no more work."""
    return [(row["tenant"], row["id"]) for row in await context.database.call(CALL.list_draining)]


async def check_leases(context: Context, command: ports.CheckLeases) -> list[LeaseStatus]:
    """How these leases stand now."""
    leases = command.leases
    ids, fences = [lease.job_id for lease in leases], [lease.fence for lease in leases]
    answers = [lease_status(lease) for lease in leases]
    for row in await context.database.call(CALL.check_leases, ids, fences):
        place, expires_at = row["place"] - 1, to_datetime(row["expires_at"])
        answers[place] = lease_status(leases[place], expires_at, cancel=row["cancel_requested"])
    return answers


def _worker_key(tenant: str | None, worker_id: str) -> WorkerKey:
    if tenant is not None and not is_id(tenant):
        raise WorkerNotFound(f"there is no worker {worker_id[:64]!r} in this tenant")
    return tenant, worker_id
