"""Removing tenants: at once for everybody who asks, and by and by what they held."""

from __future__ import annotations

from typing import Final

from ingot.engines.sqlite.blobs import clear_keys
from ingot.engines.sqlite.collect import remove_jobs
from ingot.engines.sqlite.job_files import drop_uploads
from ingot.engines.sqlite.shelf import Pair
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction
from ingot.identity.model import Tenant
from ingot.identity.ports import Cleared, ClearTenants, RemoveTenant

AT_ONCE: Final = (
    SQL.remove_tokens,
    SQL.remove_worker_credentials,
    SQL.remove_records,
    SQL.delete_tenant_groups,
    SQL.remove_members,
    SQL.remove_invitations,
)
BY_AND_BY: Final = (
    SQL.clear_idempotency_keys,
    SQL.clear_reuse_keys,
    SQL.clear_endings,
    SQL.clear_history,
    SQL.clear_batches,
    SQL.clear_counts,
    SQL.clear_workers,
    SQL.clear_usage,
    SQL.clear_events,
    SQL.clear_event_keys,
    SQL.clear_event_floors,
)


def remove_tenant(tx: Transaction, command: RemoveTenant) -> Tenant:
    """Take a tenant away: who acted in it is out, and what it held is nobody's."""
    number = tx.memory.number_of(command.id)
    tenant = tx.read(Tenant, SQL.tenant_by_name, command.id)
    for statement in AT_ONCE:
        tx.execute(statement, number)
    tx.memory.remove_tenant(tenant.id, tx.execute(SQL.remove_tenant, number, tx.now).get)
    tx.staged.removed.append(tenant.id)
    tx.audit(command.act, "tenant.removed", f"tenant/{tenant.slug}", tenant=tenant.id, before=tenant)
    return tenant


def clear_tenants(tx: Transaction, command: ClearTenants) -> Cleared:
    """Take away some of what removed tenants held, of one after the other."""
    removed = [id for id in tx.memory.numbers if id not in tx.memory.tenants]
    rows, gone = 0, []
    for id in removed:
        if rows >= command.limit:
            break
        number = tx.memory.numbers[id]
        cleared = _clear(tx, number, command.limit - rows)
        rows += cleared
        if not cleared and not tx.concerns(id) and not tx.execute(SQL.running_of_tenant, number).get:
            tx.execute(SQL.forget_tenant, number)
            del tx.memory.numbers[id]
            gone.append(id.removeprefix("removed "))
    return Cleared(rows=rows, gone=tuple(gone), left=len(removed) - len(gone), more=rows > 0)


def _clear(tx: Transaction, number: int, limit: int) -> int:
    """Ask what runs to stop, and take away jobs that do not run, and then the rest; answers how many rows."""
    tx.execute(SQL.stop_jobs, number, limit)
    jobs = tx.read(list[int], SQL.jobs_to_clear, number, limit)
    if jobs:
        remove_jobs(tx, jobs)
        tx.memory.parents.difference_update(jobs)
        tx.memory.ended.difference_update(jobs)
    rows = len(jobs)
    if rows < limit:
        pairs = tx.read(list[Pair], SQL.uploads_of_tenant, number, limit - rows)
        drop_uploads(tx, pairs, "was given up")
        rows += len(pairs)
    if rows < limit:
        rows += clear_keys(tx, number, limit - rows)
    for statement in BY_AND_BY:
        if rows < limit:
            rows += tx.execute(statement, number, limit - rows).connection.changes()
    return rows
