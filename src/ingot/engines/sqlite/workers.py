"""Workers: who is there, and what they hold."""

from __future__ import annotations

from ingot.engines.crew import WorkerRow, held
from ingot.engines.json_rows import decode
from ingot.engines.sqlite import settle
from ingot.engines.sqlite.memory import Memory
from ingot.engines.sqlite.readers import Reader
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.jobs import ports
from ingot.jobs.crew import CrewTended, Heard, Held, Worker, WorkerKey, WorkerNews, WorkerStatus
from ingot.jobs.errors import WorkerNotFound
from ingot.jobs.model import Release, Settle
from ingot.kernel.clock import to_datetime
from ingot.kernel.errors import IngotError

SHARED, NOBODY = 0, -1
RELEASE_JOBS_MAX = 1000
ALL_INSTANTS = 2**62

Silent = tuple[int, str | None, WorkerNews]  # The number and the id of a worker's tenant, and what is told of it.


def register(tx: Transaction, command: ports.RegisterWorker) -> Worker:
    """Keep a worker, or what it says of itself now."""
    tx.memory.check_tenant(command.tenant)
    key = _key(tx, command.tenant, command.worker_id)
    before = _find(tx, key)
    row = (as_json(command.types), command.hostname, command.version, command.metadata, tx.now, command.by)
    tx.execute(SQL.register_worker, *key, *row)
    known = _known(tx, key)
    if before is None or not before.online:
        _tell(tx, "worker.online", known.tenant, known.news(WorkerStatus.ONLINE))
    return known.worker()


def hear(tx: Transaction, command: ports.HearWorker) -> Heard:
    """Renew what a worker names, give back what it does not, and note that it lives."""
    key = _key(tx, command.tenant, command.worker_id)
    row = _known(tx, key)
    (answers,) = settle.renew(tx, [ports.RenewLeases(beats=command.beats)])
    named = [(beat.job_id, beat.fence) for beat in command.beats]
    _give_back(tx, key, before=tx.now - command.grace, named=named, limit=RELEASE_JOBS_MAX)
    if not row.online or tx.now - row.seen_at >= command.note_after:
        tx.execute(SQL.see_worker, *key, tx.now)
    if not row.online:
        back = WorkerStatus.DRAINING if row.draining else WorkerStatus.ONLINE
        _tell(tx, "worker.online", row.tenant, row.news(back))
    jobs = [
        held(beat)
        if isinstance(answer, IngotError)
        else held(beat, answer.lease_expires_at, cancel=answer.cancel_requested)
        for beat, answer in zip(command.beats, answers, strict=True)
    ]
    return Heard(jobs=jobs, drain=row.draining)


def drain(tx: Transaction, command: ports.DrainWorker) -> Worker:
    """Have a worker take no more work."""
    key = _key(tx, command.tenant, command.worker_id)
    before = _known(tx, key)
    if not before.draining:
        tx.execute(SQL.drain_worker, *key)
    known = _known(tx, key)
    if command.act is not None and not before.draining:
        target = f"worker/{known.id}"
        told = {"before": before.worker(), "after": known.worker()}
        tx.audit(command.act, "worker.drained", target, tenant=known.tenant, **told)
    return known.worker()


def remove(tx: Transaction, command: ports.RemoveWorker) -> bool:
    """Give back what a worker holds, and forget it."""
    key = _key(tx, command.tenant, command.worker_id)
    row = _known(tx, key)
    if _give_back(tx, key, before=ALL_INSTANTS, named=[], limit=command.limit) == command.limit:
        return False
    tx.execute(SQL.remove_worker, *key)
    if command.act is not None:
        tx.audit(command.act, "worker.removed", f"worker/{row.id}", tenant=row.tenant, before=row.worker())
    if row.online:
        _tell(tx, "worker.offline", row.tenant, row.news(WorkerStatus.OFFLINE))
    return True


def tend(tx: Transaction, command: ports.TendWorkers) -> CrewTended:
    """Take the silent for offline, and forget those that stayed so."""
    silent: list[Silent] = []
    if tx.memory.may_sweep(tx.now):
        silent = tx.read(list[Silent], SQL.silent_workers, tx.now - command.silent_after, command.limit)
    if silent:
        tx.execute(SQL.miss_workers, as_json([(number, news.id) for number, _, news in silent]))
    for _, tenant, news in silent:
        _tell(tx, "worker.offline", tenant, news)
    forgotten = len(list(tx.execute(SQL.forget_workers, tx.now - command.forget_after, command.limit)))
    return CrewTended(silent=len(silent), forgotten=forgotten, more=command.limit in (len(silent), forgotten))


def _give_back(tx: Transaction, key: tuple[int, str], *, before: int, named: list[tuple[str, int]], limit: int) -> int:
    tenant, worker_id = key
    values = (worker_id, tenant, before, as_json(named), limit)
    leases = tx.read(list[tuple[str, int]], SQL.unnamed_leases, *values)
    if leases:
        settles = [Settle(job_id=job_id, fence=fence, outcome=Release()) for job_id, fence in leases]
        settle.settle(tx, [ports.SettleJobs(settles=settles)])
    return len(leases)


def _key(tx: Transaction, tenant: str | None, worker_id: str) -> tuple[int, str]:
    return _number(tx.memory, tenant), worker_id


def _number(memory: Memory, tenant: str | None) -> int:
    return SHARED if tenant is None else memory.tenants.get(tenant, NOBODY)


def _find(tx: Transaction, key: tuple[int, str]) -> WorkerRow | None:
    text = tx.execute(SQL.worker_by_id, *key).get
    return None if text is None else decode(WorkerRow, text)


def _known(tx: Transaction, key: tuple[int, str]) -> WorkerRow:
    row = _find(tx, key)
    if row is None:
        raise WorkerNotFound(f"there is no worker {key[1][:64]!r} in this tenant")
    return row


def _tell(tx: Transaction, name: str, tenant: str | None, news: WorkerNews) -> None:
    """Append an event about a worker. One that serves all is nobody's news."""
    if tenant is not None:
        tx.staged.events[tenant].append((name, news))


def get_worker(reader: Reader, command: ports.GetWorker) -> Worker | None:
    """Find a worker."""
    row = reader.find(WorkerRow, SQL.worker_by_id, _number(reader.memory, command.tenant), command.worker_id)
    return None if row is None else row.worker()


def list_workers(reader: Reader, command: ports.ListWorkers) -> list[Worker]:
    """Read a page of the workers of a tenant, or of the shared ones."""
    reader.memory.check_tenant(command.tenant)
    values = (_number(reader.memory, command.tenant), command.after or "", command.limit)
    return [row.worker() for row in reader.read(list[WorkerRow], SQL.workers_of_tenant, *values)]


def list_draining(reader: Reader, _: ports.ListDraining) -> list[WorkerKey]:
    """Read which workers are to take no more work."""
    return reader.read(list[WorkerKey], SQL.draining_workers)


def list_leases(reader: Reader, command: ports.ListLeases) -> list[tuple[str, int]]:
    """Read which jobs a worker runs, each with its fence."""
    values = (command.worker, _number(reader.memory, command.tenant), command.limit)
    return reader.read(list[tuple[str, int]], SQL.leases_of_worker, *values)


def check_leases(reader: Reader, command: ports.CheckLeases) -> list[Held]:
    """Read how leases stand."""
    asked = as_json([(lease.job_id, lease.fence) for lease in command.leases])
    rows = reader.read(list[tuple[str, int, int, bool]], SQL.leases_held, asked)
    found = {(job_id, fence): (to_datetime(expires_at), cancel) for job_id, fence, expires_at, cancel in rows}
    answers = []
    for lease in command.leases:
        expires_at, cancel = found.get((lease.job_id, lease.fence), (None, False))
        answers.append(held(lease, expires_at, cancel=cancel))
    return answers
