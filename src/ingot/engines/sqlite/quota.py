"""Usage of tenants and owners, and their quotas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ingot.blobs.errors import QuotaExceeded
from ingot.blobs.model import GRACE_MICROS, FreedTimes, QuotaEventData
from ingot.engines.sqlite.blob_rows import WHOLE_TENANT, StorageUsage
from ingot.engines.sqlite.readers import Reader
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json

QuotaScope = Literal["tenant", "token"]


def charge(
    tx: Transaction,
    tenant: str,
    owner: str,
    change: StorageUsage,
    *,
    quota: int | None = None,
    refunds: Sequence[tuple[str, StorageUsage]] = (),
) -> None:
    """Add `change` to the usage of an owner, and `refunds` to that of owners. Raises `QuotaExceeded`.

    A change that does not increase usage is never refused, even above the quota. An event reports 80 % of a quota.
    """
    tenant_change, owner_change = change, change
    for refunded_owner, refund in refunds:
        tenant_change += refund
        owner_change += refund if refunded_owner == owner else StorageUsage()
    warnings = [
        _check_quota(tx, tenant, "tenant", WHOLE_TENANT, tenant_change, tx.writer_state.limits[tenant].quota_bytes),
        _check_quota(tx, tenant, "token", owner, owner_change, quota),
    ]
    tx.effects.usage[tenant, WHOLE_TENANT] += tenant_change
    tx.effects.usage[tenant, owner] += change
    for refunded_owner, refund in refunds:
        tx.effects.usage[tenant, refunded_owner] += refund
    tx.effects.blob_totals["deleted"] += tenant_change.deleted
    tx.effects.events[tenant] += [("quota.warning", warning) for warning in warnings if warning is not None]


def refund_usage(tx: Transaction, tenant: str, owner: str, usage: StorageUsage) -> None:
    """Subtract from the usage of an owner. Usage of removed tenants is not counted."""
    if tenant in tx.writer_state.tenants:
        for counted_owner in (WHOLE_TENANT, owner):
            tx.effects.usage[tenant, counted_owner] += -usage


def add_deleted(tx: Transaction, tenant: str | None, owner: str, size: int) -> None:
    """Count deleted bytes that are still stored, or with a negative size bytes that are free or needed again."""
    if tenant is not None and tenant in tx.writer_state.tenants and size:
        for counted_owner in {WHOLE_TENANT, owner}:
            tx.effects.usage[tenant, counted_owner] += StorageUsage(deleted=size)
    tx.effects.blob_totals["deleted"] += size


def bury(tx: Transaction, owners: Mapping[int, str]) -> None:
    """Leave tombstones for those of these blobs that lost their last reference. `owners` had these references."""
    if not owners:
        return
    tombstones = []
    for number, tenant, size in tx.read(list[tuple[int, str | None, int]], SQL.deleted_blobs, as_json(list(owners))):
        existing_tenant = tenant if tenant in tx.writer_state.tenants else None
        tenant_number = None if existing_tenant is None else tx.writer_state.tenants[existing_tenant]
        tombstones.append((number, tx.now, tenant_number, owners[number], size))
        add_deleted(tx, existing_tenant, owners[number], size)
    tx.write_rows(SQL.put_tombstones, tombstones)


def grace_micros(tx: Transaction | Reader) -> int:
    """Return how long deleted blobs are kept, in microseconds."""
    grace: int | None = tx.execute(SQL.grace).get
    return GRACE_MICROS if grace is None else grace


def _check_quota(
    tx: Transaction, tenant: str, scope: QuotaScope, owner: str, change: StorageUsage, limit: int | None
) -> QuotaEventData | None:
    if limit is None:
        return None
    increase = change.total
    current = tx.usage(tenant, owner)
    usage = current.total
    if increase > 0 and usage + increase > limit:
        freed = tx.read(FreedTimes, SQL.deleted_until, tx.writer_state.tenant_numbers[tenant], grace_micros(tx))
        raise QuotaExceeded(
            scope=scope,
            usage=usage,
            limit=limit,
            requested=increase,
            deleted=current.deleted,
            freed=(freed.freed_from(tx.now), freed.freed_by(tx.now)),
        )
    if not 5 * usage < 4 * limit <= 5 * (usage + increase):
        return None
    return QuotaEventData(scope=scope, owner=owner or None, usage_bytes=usage + increase, quota_bytes=limit)
