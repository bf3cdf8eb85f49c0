"""Commands for registered workers and their leases."""

from __future__ import annotations

from typing import Final

from ingot.engines.postgres.context import Context
from ingot.engines.postgres.function_calls import CALL, json_text
from ingot.engines.postgres.settle import leases_of, record_ended_attempts
from ingot.engines.postgres.tenants import check_tenant, check_tenant_id
from ingot.engines.worker_rows import WorkerGroup, WorkerRow, count_by_status, lease_status
from ingot.jobs import ports
from ingot.jobs.errors import WorkerNotFound
from ingot.jobs.worker_model import (
    HeartbeatAnswer,
    LeaseStatus,
    RegisteredWorker,
    WorkerKey,
    WorkerMaintenanceResult,
    WorkerStatus,
)
from ingot.kernel.clock import to_datetime
from ingot.kernel.ids import is_id

RELEASE_JOBS_MAX: Final = 1000
NEVER: Final = 2**61


async def register(context: Context, command: ports.RegisterWorker) -> RegisteredWorker:
    """See `RegisterWorker`."""
    check_tenant_id(command.tenant)
    row = await context.fetch(
        WorkerRow,
        CALL.register_worker,
        command.tenant,
        command.worker_id,
        list(command.types),
        command.hostname,
        command.version,
        command.metadata,
        command.by,
        command.protocol,
    )
    return row.worker()


async def heartbeat(context: Context, command: ports.WorkerHeartbeat) -> HeartbeatAnswer:
    """See `WorkerHeartbeat`."""
    beats = command.beats
    rows = await context.database.call(
        CALL.record_heartbeat,
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
            index, expires_at = row["place"] - 1, to_datetime(row["expires_at"])
            jobs[index] = lease_status(beats[index], expires_at, cancel=row["cancel_requested"])
        elif row["draining"] is not None:
            drain = row["draining"]
        else:
            record_ended_attempts(context.lane_cache, row)
    return HeartbeatAnswer(jobs=jobs, drain=drain)


async def drain(context: Context, command: ports.DrainWorker) -> RegisteredWorker:
    """See `DrainWorker`."""
    key, act = _worker_key(command.tenant, command.worker_id), json_text(command.act)
    return (await context.fetch(WorkerRow, CALL.drain_worker, *key, act)).worker()


async def remove(context: Context, command: ports.RemoveWorker) -> bool:
    """See `RemoveWorker`."""
    removed = False
    key, act = _worker_key(command.tenant, command.worker_id), json_text(command.act)
    for row in await context.database.call(CALL.remove_worker, *key, command.limit, act):
        if row["removed"] is not None:
            removed = row["removed"]
        else:
            record_ended_attempts(context.lane_cache, row)
    return removed


async def maintain(context: Context, command: ports.MaintainWorkers) -> WorkerMaintenanceResult:
    """See `MaintainWorkers`."""
    may_sweep = context.lane_cache.sweep_guard.may_sweep(context.lane_cache.now())
    offline_after = command.offline_after if may_sweep else NEVER
    ((offline, removed),) = await context.database.call(
        CALL.maintain_workers, offline_after, command.remove_after, command.limit
    )
    return WorkerMaintenanceResult(marked_offline=offline, removed=removed, more=command.limit in (offline, removed))


async def get_worker(context: Context, command: ports.GetWorker) -> RegisteredWorker | None:
    """See `GetWorker`."""
    if command.tenant is not None and not is_id(command.tenant):
        return None
    row = await context.find(WorkerRow, CALL.find_worker, command.tenant, command.worker_id)
    return None if row is None else row.worker(context.lane_cache.now() - command.silent_after)


async def list_workers(context: Context, command: ports.ListWorkers) -> list[RegisteredWorker]:
    """See `ListWorkers`."""
    if command.tenant is not None:
        await check_tenant(context, command.tenant)
    arguments = (command.tenant, command.after or "", command.limit)
    silent_since = context.lane_cache.now() - command.silent_after
    return [row.worker(silent_since) for row in await context.find_all(WorkerRow, CALL.list_workers, *arguments)]


async def list_workers_of_type(context: Context, command: ports.ListWorkersOfType) -> list[RegisteredWorker]:
    """See `ListWorkersOfType`."""
    check_tenant_id(command.tenant)
    arguments = (command.tenant, command.type, command.of_other_tenants, command.limit)
    silent_since = context.lane_cache.now() - command.silent_after
    return [row.worker(silent_since) for row in await context.find_all(WorkerRow, CALL.workers_of_type, *arguments)]


async def list_draining(context: Context, _: ports.ListDrainingWorkers) -> list[WorkerKey]:
    """See `ListDrainingWorkers`."""
    return [(row["tenant"], row["id"]) for row in await context.database.call(CALL.list_draining)]


async def count_workers(context: Context, command: ports.CountWorkers) -> dict[WorkerStatus, int]:
    """See `CountWorkers`."""
    rows = await context.database.call(CALL.count_workers, context.lane_cache.now() - command.silent_after)
    return count_by_status(WorkerGroup(**row) for row in rows)


async def check_leases(context: Context, command: ports.CheckLeases) -> list[LeaseStatus]:
    """See `CheckLeases`."""
    leases = command.leases
    ids, fences = [lease.job_id for lease in leases], [lease.fence for lease in leases]
    statuses = [lease_status(lease) for lease in leases]
    for row in await context.database.call(CALL.check_leases, ids, fences):
        index, expires_at = row["place"] - 1, to_datetime(row["expires_at"])
        statuses[index] = lease_status(leases[index], expires_at, cancel=row["cancel_requested"])
    return statuses


def _worker_key(tenant: str | None, worker_id: str) -> WorkerKey:
    if tenant is not None and not is_id(tenant):
        raise WorkerNotFound(f"there is no worker {worker_id[:64]!r} in this tenant")
    return tenant, worker_id
