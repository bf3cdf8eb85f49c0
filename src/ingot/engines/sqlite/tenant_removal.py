"""Removing tenants: at once for everybody who asks, and by and by what they held."""

from __future__ import annotations

from typing import Final

from ingot.engines.sqlite.blob_batch import TenantName
from ingot.engines.sqlite.blobs import clear_keys
from ingot.engines.sqlite.job_files import drop_uploads
from ingot.engines.sqlite.retention import remove_jobs
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction
from ingot.identity.model import Tenant
from ingot.identity.ports import ClearTenants, ClearTenantsResult, RemoveTenant

REMOVED_AT_ONCE: Final = (
    SQL.remove_tokens,
    SQL.remove_worker_credentials,
    SQL.remove_records,
    SQL.delete_tenant_groups,
    SQL.remove_members,
    SQL.remove_invitations,
)
CLEARED_GRADUALLY: Final = (
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
    number = tx.writer_state.number_of(command.id)
    tenant = tx.read(Tenant, SQL.tenant_by_name, command.id)
    for statement in REMOVED_AT_ONCE:
        tx.execute(statement, number)
    tx.writer_state.remove_tenant(tenant.id, tx.execute(SQL.remove_tenant, number, tx.now).get)
    tx.effects.removed_tenants.append(tenant.id)
    tx.audit(command.act, "tenant.removed", f"tenant/{tenant.slug}", tenant=tenant.id, before=tenant)
    return tenant


def clear_tenants(tx: Transaction, command: ClearTenants) -> ClearTenantsResult:
    """Take away some of what removed tenants held, of one after the other."""
    removed = [id for id in tx.writer_state.tenant_numbers if id not in tx.writer_state.tenants]
    rows, gone = 0, []
    for id in removed:
        if rows >= command.limit:
            break
        number = tx.writer_state.tenant_numbers[id]
        cleared = _clear_tenant(tx, number, command.limit - rows)
        rows += cleared
        if not cleared and not tx.has_effects_for(id) and not tx.execute(SQL.has_unfinished_jobs, number).get:
            tx.execute(SQL.delete_removed_tenant, number)
            del tx.writer_state.tenant_numbers[id]
            gone.append(id.removeprefix("removed "))
    return ClearTenantsResult(
        rows=rows, cleared_tenants=tuple(gone), remaining_tenants=len(removed) - len(gone), has_more=rows > 0
    )


def _clear_tenant(tx: Transaction, number: int, limit: int) -> int:
    """Ask what runs to stop, and take away jobs that do not run, and then the rest; answers how many rows."""
    tx.execute(SQL.request_cancels, number, limit)
    jobs = tx.read(list[int], SQL.jobs_to_clear, number, limit)
    if jobs:
        remove_jobs(tx, jobs)
        tx.writer_state.parents.difference_update(jobs)
        tx.writer_state.ended_parents.difference_update(jobs)
    rows = len(jobs)
    if rows < limit:
        pairs = tx.read(list[TenantName], SQL.uploads_of_tenant, number, limit - rows)
        drop_uploads(tx, pairs, "was given up")
        rows += len(pairs)
    if rows < limit:
        rows += clear_keys(tx, number, limit - rows)
    for statement in CLEARED_GRADUALLY:
        if rows < limit:
            rows += tx.execute(statement, number, limit - rows).connection.changes()
    return rows
