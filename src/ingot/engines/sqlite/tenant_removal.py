"""Removing tenants: they disappear at once, and their rows are deleted gradually."""

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

REMOVED_IMMEDIATELY: Final = (
    SQL.remove_tokens,
    SQL.remove_worker_credentials,
    SQL.remove_records,
    SQL.delete_tenant_groups,
    SQL.remove_members,
    SQL.remove_invitations,
    SQL.remove_departures,
    SQL.forget_tenant_of_users,
    SQL.forget_tenant_of_sessions,
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
    SQL.disown_blobs,
    SQL.disown_tombstones,
    SQL.disown_trash,
    SQL.clear_events,
    SQL.clear_event_keys,
    SQL.clear_event_floors,
)


def remove_tenant(tx: Transaction, command: RemoveTenant) -> Tenant:
    """Remove a tenant with its credentials, records and members, and hide its other rows."""
    number = tx.writer_state.number_of(command.id)
    tenant = tx.read(Tenant, SQL.tenant_by_name, command.id)
    for statement in REMOVED_IMMEDIATELY:
        tx.execute(statement, number)
    tx.writer_state.remove_tenant(tenant.id, tx.execute(SQL.remove_tenant, number, tx.now).get)
    tx.effects.removed_tenants.append(tenant.id)
    tx.audit(command.act, "tenant.removed", f"tenant/{tenant.slug}", tenant=tenant.id, before=tenant)
    return tenant


def clear_tenants(tx: Transaction, command: ClearTenants) -> ClearTenantsResult:
    """Delete rows of removed tenants, one tenant after the other, up to the limit."""
    removed = [id for id in tx.writer_state.tenant_numbers if id not in tx.writer_state.tenants]
    rows, cleared_ids = 0, []
    for id in removed:
        if rows >= command.limit:
            break
        number = tx.writer_state.tenant_numbers[id]
        deleted = _clear_tenant(tx, number, command.limit - rows)
        rows += deleted
        if not deleted and not tx.has_effects_for(id) and not tx.execute(SQL.has_unfinished_jobs, number).get:
            tx.execute(SQL.delete_removed_tenant, number)
            del tx.writer_state.tenant_numbers[id]
            cleared_ids.append(id.removeprefix("removed "))
    return ClearTenantsResult(
        rows=rows,
        cleared_tenants=tuple(cleared_ids),
        remaining_tenants=len(removed) - len(cleared_ids),
        has_more=rows > 0,
    )


def _clear_tenant(tx: Transaction, number: int, limit: int) -> int:
    """Request running jobs to stop; delete other jobs, then all other rows. Return the number of deleted rows."""
    tx.execute(SQL.request_cancels, number, limit)
    jobs = tx.read(list[int], SQL.jobs_to_clear, number, limit)
    if jobs:
        remove_jobs(tx, jobs)
        tx.writer_state.parents.difference_update(jobs)
        tx.writer_state.ended_parents.difference_update(jobs)
    rows = len(jobs)
    if rows < limit:
        pairs = tx.read(list[TenantName], SQL.uploads_of_tenant, number, limit - rows)
        drop_uploads(tx, pairs, "was canceled")
        rows += len(pairs)
    if rows < limit:
        rows += clear_keys(tx, number, limit - rows)
    for statement in CLEARED_GRADUALLY:
        if rows < limit:
            rows += tx.execute(statement, number, limit - rows).connection.changes()
    return rows
