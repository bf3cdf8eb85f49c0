"""Workers: who is there, and what they hold."""

from __future__ import annotations

from typing import Final

from ingot.engines.crew import WorkerRow, held
from ingot.engines.postgres.calls import CALL, json_text
from ingot.engines.postgres.context import Context
from ingot.engines.postgres.identity import check_tenant, check_tenant_id
from ingot.engines.postgres.settle import came_back, leases_of
from ingot.jobs import ports
from ingot.jobs.crew import CrewTended, Heard, Held, Worker, WorkerKey
from ingot.jobs.errors import WorkerNotFound
from ingot.kernel.clock import to_datetime
from ingot.kernel.ids import is_id

RELEASE_JOBS_MAX: Final = 1000
NEVER: Final = 2**61


async def register(context: Context, command: ports.RegisterWorker) -> Worker:
    """Keep a worker, or what it says of itself now."""
    check_tenant_id(command.tenant)
    row = (list(command.types), command.hostname, command.version, command.metadata, command.by)
    known = await context.fetch(WorkerRow, CALL.register_worker, command.tenant, command.worker_id, *row)
    return known.worker()


async def hear(context: Context, command: ports.HearWorker) -> Heard:
    """Renew what a worker names, give back what it does not, and note that it lives."""
    beats = command.beats
    rows = await context.database.call(
        CALL.hear_worker,
        *_key(command.tenant, command.worker_id),
        command.grace,
        command.note_after,
        RELEASE_JOBS_MAX,
        *leases_of(beats),
        [beat.lease for beat in beats],
        [beat.percent for beat in beats],
        [beat.stage for beat in beats],
        [beat.worker for beat in beats],
    )
    jobs = [Held(job_id=beat.job_id, fence=beat.fence) for beat in beats]
    drain = False
    for row in rows:
        if row["place"] is not None:
            context.memory.expires_at(row["expires_at"])
            place, expires_at = row["place"] - 1, to_datetime(row["expires_at"])
            jobs[place] = held(beats[place], expires_at, cancel=row["cancel_requested"])
        elif row["draining"] is not None:
            drain = row["draining"]
        else:
            came_back(context.memory, row)
    return Heard(jobs=jobs, drain=drain)


async def drain(context: Context, command: ports.DrainWorker) -> Worker:
    """Have a worker take no more work."""
    key, act = _key(command.tenant, command.worker_id), json_text(command.act)
    return (await context.fetch(WorkerRow, CALL.drain_worker, *key, act)).worker()


async def remove(context: Context, command: ports.RemoveWorker) -> bool:
    """Give back what a worker holds, and forget it."""
    gone = False
    key, act = _key(command.tenant, command.worker_id), json_text(command.act)
    for row in await context.database.call(CALL.remove_worker, *key, command.limit, act):
        if row["gone"] is not None:
            gone = row["gone"]
        else:
            came_back(context.memory, row)
    return gone


async def tend(context: Context, command: ports.TendWorkers) -> CrewTended:
    """Take the silent for offline, and forget those that stayed so."""
    silent_after = command.silent_after if context.memory.now() >= context.memory.sweep_from else NEVER
    ((silent, forgotten),) = await context.database.call(
        CALL.tend_workers, silent_after, command.forget_after, command.limit
    )
    return CrewTended(silent=silent, forgotten=forgotten, more=command.limit in (silent, forgotten))


async def get_worker(context: Context, command: ports.GetWorker) -> Worker | None:
    """One worker."""
    if command.tenant is not None and not is_id(command.tenant):
        return None
    known = await context.find(WorkerRow, CALL.find_worker, command.tenant, command.worker_id)
    return None if known is None else known.worker()


async def list_workers(context: Context, command: ports.ListWorkers) -> list[Worker]:
    """Workers of a tenant, or the shared ones."""
    if command.tenant is not None:
        await check_tenant(context, command.tenant)
    row = (command.tenant, command.after or "", command.limit)
    return [known.worker() for known in await context.find_all(WorkerRow, CALL.list_workers, *row)]


async def list_draining(context: Context, _: ports.ListDraining) -> list[WorkerKey]:
    """All that are to take no more work."""
    return [(row["tenant"], row["id"]) for row in await context.database.call(CALL.list_draining)]


async def check_leases(context: Context, command: ports.CheckLeases) -> list[Held]:
    """How these leases stand now."""
    leases = command.leases
    ids, fences = [lease.job_id for lease in leases], [lease.fence for lease in leases]
    answers = [held(lease) for lease in leases]
    for row in await context.database.call(CALL.check_leases, ids, fences):
        place, expires_at = row["place"] - 1, to_datetime(row["expires_at"])
        answers[place] = held(leases[place], expires_at, cancel=row["cancel_requested"])
    return answers


def _key(tenant: str | None, worker_id: str) -> WorkerKey:
    if tenant is not None and not is_id(tenant):
        raise WorkerNotFound(f"there is no worker {worker_id[:64]!r} in this tenant")
    return tenant, worker_id
