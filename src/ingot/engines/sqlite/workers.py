"""Registered workers, and the leases that they hold."""

from __future__ import annotations

from ingot.engines.json_rows import decode
from ingot.engines.sqlite import settle
from ingot.engines.sqlite.readers import Reader
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.engines.sqlite.writer_state import WriterState
from ingot.engines.worker_rows import WorkerGroup, WorkerRow, count_by_status, lease_status
from ingot.jobs import ports
from ingot.jobs.errors import WorkerNotFound
from ingot.jobs.model import Release, Settle
from ingot.jobs.worker_model import (
    HeartbeatAnswer,
    LeaseStatus,
    RegisteredWorker,
    WorkerEventData,
    WorkerKey,
    WorkerMaintenanceResult,
    WorkerStatus,
)
from ingot.kernel.clock import to_datetime
from ingot.kernel.errors import IngotError

SHARED_TENANT, NO_TENANT = 0, -1
RELEASE_JOBS_MAX = 1000
END_OF_TIME = 2**62

# The number and the ID of the tenant of a worker, and the data of its event.
SilentWorkerRow = tuple[int, str | None, WorkerEventData]


def register_worker(tx: Transaction, command: ports.RegisterWorker) -> RegisteredWorker:
    """Register a worker, or replace what it reported before."""
    tx.writer_state.check_tenant(command.tenant)
    key = _worker_key(tx, command.tenant, command.worker_id)
    before = _find_worker_row(tx, key)
    row = (
        as_json(command.types),
        command.hostname,
        command.version,
        command.metadata,
        tx.now,
        command.by,
        command.protocol,
    )
    tx.execute(SQL.register_worker, *key, *row)
    registered = _get_worker_row(tx, key)
    if before is None or not before.online:
        _append_event(tx, "worker.online", registered.tenant, registered.event_data(WorkerStatus.ONLINE))
    return registered.worker()


def heartbeat(tx: Transaction, command: ports.WorkerHeartbeat) -> HeartbeatAnswer:
    """Renew the leases that a worker reports, release its other leases, and record that it is alive."""
    key = _worker_key(tx, command.tenant, command.worker_id)
    row = _get_worker_row(tx, key)
    (answers,) = settle.renew_leases(tx, [ports.RenewLeases(beats=command.beats)])
    reported = [(beat.job_id, beat.fence) for beat in command.beats]
    _release_leases(tx, key, before=tx.now - command.grace, reported=reported, limit=RELEASE_JOBS_MAX)
    if not row.online or tx.now - row.seen_at >= command.record_seen_after:
        tx.execute(SQL.record_worker_seen, *key, tx.now)
    if not row.online:
        status = WorkerStatus.DRAINING if row.draining else WorkerStatus.ONLINE
        _append_event(tx, "worker.online", row.tenant, row.event_data(status))
    jobs = [
        lease_status(beat)
        if isinstance(answer, IngotError)
        else lease_status(beat, answer.lease_expires_at, cancel=answer.cancel_requested)
        for beat, answer in zip(command.beats, answers, strict=True)
    ]
    return HeartbeatAnswer(jobs=jobs, drain=row.draining)


def drain_worker(tx: Transaction, command: ports.DrainWorker) -> RegisteredWorker:
    """Mark a worker as draining."""
    key = _worker_key(tx, command.tenant, command.worker_id)
    before = _get_worker_row(tx, key)
    if not before.draining:
        tx.execute(SQL.drain_worker, *key)
    drained = _get_worker_row(tx, key)
    if command.act is not None and not before.draining:
        target = f"worker/{drained.id}"
        states = {"before": before.worker(), "after": drained.worker()}
        tx.audit(command.act, "worker.drained", target, tenant=drained.tenant, **states)
    return drained.worker()


def remove_worker(tx: Transaction, command: ports.RemoveWorker) -> bool:
    """Release the leases of a worker and remove it. Return false if leases are left."""
    key = _worker_key(tx, command.tenant, command.worker_id)
    row = _get_worker_row(tx, key)
    if _release_leases(tx, key, before=END_OF_TIME, reported=[], limit=command.limit) == command.limit:
        return False
    tx.execute(SQL.remove_worker, *key)
    if command.act is not None:
        tx.audit(command.act, "worker.removed", f"worker/{row.id}", tenant=row.tenant, before=row.worker())
    if row.online:
        _append_event(tx, "worker.offline", row.tenant, row.event_data(WorkerStatus.OFFLINE))
    return True


def maintain_workers(tx: Transaction, command: ports.MaintainWorkers) -> WorkerMaintenanceResult:
    """Mark silent workers as offline, and remove workers that have been offline for long."""
    silent: list[SilentWorkerRow] = []
    if tx.writer_state.sweep_guard.may_sweep(tx.now):
        silent = tx.read(list[SilentWorkerRow], SQL.silent_workers, tx.now - command.offline_after, command.limit)
    if silent:
        tx.execute(SQL.mark_workers_offline, as_json([(number, event_data.id) for number, _, event_data in silent]))
    for _, tenant, event_data in silent:
        _append_event(tx, "worker.offline", tenant, event_data)
    removed = len(list(tx.execute(SQL.remove_offline_workers, tx.now - command.remove_after, command.limit)))
    return WorkerMaintenanceResult(
        marked_offline=len(silent), removed=removed, more=command.limit in (len(silent), removed)
    )


def _release_leases(
    tx: Transaction, key: tuple[int, str], *, before: int, reported: list[tuple[str, int]], limit: int
) -> int:
    tenant, worker_id = key
    values = (worker_id, tenant, before, as_json(reported), limit)
    leases = tx.read(list[tuple[str, int]], SQL.unreported_leases, *values)
    if leases:
        settles = [Settle(job_id=job_id, fence=fence, outcome=Release()) for job_id, fence in leases]
        settle.settle_jobs(tx, [ports.SettleJobs(settles=settles)])
    return len(leases)


def _worker_key(tx: Transaction, tenant: str | None, worker_id: str) -> tuple[int, str]:
    return _tenant_number(tx.writer_state, tenant), worker_id


def _tenant_number(writer_state: WriterState, tenant: str | None) -> int:
    return SHARED_TENANT if tenant is None else writer_state.tenants.get(tenant, NO_TENANT)


def _find_worker_row(tx: Transaction, key: tuple[int, str]) -> WorkerRow | None:
    text = tx.execute(SQL.worker_by_id, *key).get
    return None if text is None else decode(WorkerRow, text)


def _get_worker_row(tx: Transaction, key: tuple[int, str]) -> WorkerRow:
    row = _find_worker_row(tx, key)
    if row is None:
        raise WorkerNotFound(f"there is no worker {key[1][:64]!r} in this tenant")
    return row


def _append_event(tx: Transaction, name: str, tenant: str | None, event_data: WorkerEventData) -> None:
    """Append an event about a worker. Shared workers have no tenant, and so no events."""
    if tenant is not None:
        tx.effects.events[tenant].append((name, event_data))


def get_worker(reader: Reader, command: ports.GetWorker) -> RegisteredWorker | None:
    """Read a worker."""
    row = reader.find(
        WorkerRow, SQL.worker_by_id, _tenant_number(reader.writer_state, command.tenant), command.worker_id
    )
    return None if row is None else row.worker(reader.clock.micros() - command.silent_after)


def list_workers(reader: Reader, command: ports.ListWorkers) -> list[RegisteredWorker]:
    """Read a page of the workers of a tenant, or of the shared ones."""
    reader.writer_state.check_tenant(command.tenant)
    values = (_tenant_number(reader.writer_state, command.tenant), command.after or "", command.limit)
    silent_since = reader.clock.micros() - command.silent_after
    return [row.worker(silent_since) for row in reader.read(list[WorkerRow], SQL.workers_of_tenant, *values)]


def list_workers_of_type(reader: Reader, command: ports.ListWorkersOfType) -> list[RegisteredWorker]:
    """Read the workers that run jobs of a type in a tenant, or those of other tenants."""
    number = reader.writer_state.number_of(command.tenant)
    values = (number, command.type, command.of_other_tenants, command.limit)
    silent_since = reader.clock.micros() - command.silent_after
    return [row.worker(silent_since) for row in reader.read(list[WorkerRow], SQL.workers_of_type, *values)]


def list_draining_workers(reader: Reader, _: ports.ListDrainingWorkers) -> list[WorkerKey]:
    """Read the workers that are draining."""
    return reader.read(list[WorkerKey], SQL.draining_workers)


def count_workers(reader: Reader, command: ports.CountWorkers) -> dict[WorkerStatus, int]:
    """Count all workers by status."""
    silent_since = reader.clock.micros() - command.silent_after
    return count_by_status(reader.read(list[WorkerGroup], SQL.count_workers, silent_since))


def list_leases(reader: Reader, command: ports.ListLeases) -> list[tuple[str, int]]:
    """Read the jobs that a worker runs, each with its fence."""
    values = (command.worker, _tenant_number(reader.writer_state, command.tenant), command.limit)
    return reader.read(list[tuple[str, int]], SQL.leases_of_worker, *values)


def check_leases(reader: Reader, command: ports.CheckLeases) -> list[LeaseStatus]:
    """Read which of these leases are current."""
    leases = as_json([(lease.job_id, lease.fence) for lease in command.leases])
    rows = reader.read(list[tuple[str, int, int, bool]], SQL.current_leases, leases)
    current = {(job_id, fence): (to_datetime(expires_at), cancel) for job_id, fence, expires_at, cancel in rows}
    answers = []
    for lease in command.leases:
        expires_at, cancel = current.get((lease.job_id, lease.fence), (None, False))
        answers.append(lease_status(lease, expires_at, cancel=cancel))
    return answers
