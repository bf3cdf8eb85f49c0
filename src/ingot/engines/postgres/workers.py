"""Workers: who is there, and what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ingot.engines.crew import WorkerRow
from ingot.engines.postgres.audit import act_text
from ingot.engines.postgres.connection import Database
from ingot.engines.postgres.memory import Memory
from ingot.engines.postgres.settle import came_back, held
from ingot.events.audit import Act
from ingot.identity.model import TenantNotFound
from ingot.jobs.crew import CrewTended, Heard, Held, Worker, WorkerKey
from ingot.jobs.errors import WorkerNotFound
from ingot.jobs.ports import DrainWorker, HearWorker, RegisterWorker, RemoveWorker, TendWorkers
from ingot.kernel.clock import to_datetime
from ingot.kernel.ids import is_id

HEAR: Final = "SELECT * FROM ingot.hear_worker($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
REMOVE: Final = "SELECT * FROM ingot.remove_worker($1, $2, $3, $4)"
TEND: Final = "SELECT * FROM ingot.tend_workers($1, $2, $3)"
RELEASE_JOBS_MAX: Final = 1000
NEVER: Final = 2**61


async def register(db: Database, command: RegisterWorker) -> Worker:
    """Keep a worker, or what it says of itself now."""
    if command.tenant is not None and not is_id(command.tenant):
        raise TenantNotFound(f"there is no tenant {command.tenant[:64]!r}")
    row = (list(command.types), command.hostname, command.version, command.metadata, command.by)
    ((text,),) = await db.call(
        "SELECT ingot.register_worker($1, $2, $3, $4, $5, $6, $7)", command.tenant, command.worker_id, *row
    )
    return WorkerRow.read(text).worker()


async def hear(db: Database, memory: Memory, command: HearWorker) -> Heard:
    """Renew what a worker names, give back what it does not, and note that it lives."""
    beats = command.beats
    rows = await db.call(
        HEAR,
        *_key(command.tenant, command.worker_id),
        command.grace,
        command.note_after,
        RELEASE_JOBS_MAX,
        *held(beats),
        [beat.lease for beat in beats],
        [beat.percent for beat in beats],
        [beat.stage for beat in beats],
        [beat.worker for beat in beats],
    )
    jobs = [Held(job_id=beat.job_id, fence=beat.fence) for beat in beats]
    drain = False
    for row in rows:
        if row["place"] is not None:
            memory.expires_at(row["expires_at"])
            beat = beats[row["place"] - 1]
            jobs[row["place"] - 1] = _held(beat.job_id, beat.fence, row["expires_at"], cancel=row["cancel_requested"])
        elif row["draining"] is not None:
            drain = row["draining"]
        else:
            came_back(memory, row)
    return Heard(jobs=jobs, drain=drain)


async def drain(db: Database, command: DrainWorker) -> Worker:
    """Have a worker take no more work."""
    key, act = _key(command.tenant, command.worker_id), _act(command.act)
    ((text,),) = await db.call("SELECT ingot.drain_worker($1, $2, $3)", *key, act)
    return WorkerRow.read(text).worker()


async def remove(db: Database, memory: Memory, command: RemoveWorker) -> bool:
    """Give back what a worker holds, and forget it."""
    gone = False
    key, act = _key(command.tenant, command.worker_id), _act(command.act)
    for row in await db.call(REMOVE, *key, command.limit, act):
        if row["gone"] is not None:
            gone = row["gone"]
        else:
            came_back(memory, row)
    return gone


async def tend(db: Database, memory: Memory, command: TendWorkers) -> CrewTended:
    """Take the silent for offline, and forget those that stayed so."""
    silent_after = command.silent_after if memory.now() >= memory.sweep_from else NEVER
    ((silent, forgotten),) = await db.call(TEND, silent_after, command.forget_after, command.limit)
    return CrewTended(silent=silent, forgotten=forgotten, more=command.limit in (silent, forgotten))


async def get_worker(db: Database, tenant: str | None, worker_id: str) -> Worker | None:
    """One worker."""
    if tenant is not None and not is_id(tenant):
        return None
    ((text,),) = await db.call("SELECT ingot.find_worker($1, $2)", tenant, worker_id)
    return None if text is None else WorkerRow.read(text).worker()


async def list_workers(db: Database, tenant: str | None, *, after: str | None, limit: int) -> list[Worker]:
    """Workers of a tenant, or the shared ones."""
    rows = await db.call("SELECT ingot.list_workers($1, $2, $3)", tenant, after or "", limit)
    return [WorkerRow.read(text).worker() for (text,) in rows]


async def list_draining(db: Database) -> list[WorkerKey]:
    """All that are to take no more work."""
    return [(row["tenant"], row["id"]) for row in await db.call("SELECT * FROM ingot.list_draining()")]


async def check_leases(db: Database, leases: Sequence[Held]) -> list[Held]:
    """How these leases stand now."""
    ids, fences = [lease.job_id for lease in leases], [lease.fence for lease in leases]
    answers = [Held(job_id=lease.job_id, fence=lease.fence) for lease in leases]
    for row in await db.call("SELECT * FROM ingot.check_leases($1, $2)", ids, fences):
        lease = leases[row["place"] - 1]
        answers[row["place"] - 1] = _held(lease.job_id, lease.fence, row["expires_at"], cancel=row["cancel_requested"])
    return answers


def _held(job_id: str, fence: int, expires_at: int, *, cancel: bool) -> Held:
    return Held(job_id=job_id, fence=fence, lease_expires_at=to_datetime(expires_at), cancel_requested=cancel)


def _act(act: Act | None) -> str | None:
    return None if act is None else act_text(act)


def _key(tenant: str | None, worker_id: str) -> WorkerKey:
    if tenant is not None and not is_id(tenant):
        raise WorkerNotFound(f"there is no worker {worker_id[:64]!r} in this tenant")
    return tenant, worker_id
