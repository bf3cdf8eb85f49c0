"""Usage of tenants and owners, and their quotas."""

from __future__ import annotations

from typing import Literal

from ingot.blobs.errors import QuotaExceeded
from ingot.blobs.model import QuotaEventData
from ingot.engines.sqlite.blob_rows import WHOLE_TENANT, StorageUsage
from ingot.engines.sqlite.transaction import Transaction

QuotaScope = Literal["tenant", "token"]


def charge(
    tx: Transaction,
    tenant: str,
    owner: str,
    change: StorageUsage,
    *,
    quota: int | None = None,
    refund: tuple[str, StorageUsage] | None = None,
) -> None:
    """Add `change` to the usage of an owner, and `refund` to that of another. Raises `QuotaExceeded`.

    A change that does not increase usage is never refused, even above the quota. An event reports 80 % of a quota.
    """
    tenant_change, owner_change = change, change
    if refund is not None:
        tenant_change += refund[1]
        owner_change += refund[1] if refund[0] == owner else StorageUsage()
    warnings = [
        _check_quota(tx, tenant, "tenant", WHOLE_TENANT, tenant_change, tx.writer_state.limits[tenant].quota_bytes),
        _check_quota(tx, tenant, "token", owner, owner_change, quota),
    ]
    tx.effects.usage[tenant, WHOLE_TENANT] += tenant_change
    tx.effects.usage[tenant, owner] += change
    if refund is not None:
        tx.effects.usage[tenant, refund[0]] += refund[1]
    tx.effects.events[tenant] += [("quota.warning", warning) for warning in warnings if warning is not None]


def refund_usage(tx: Transaction, tenant: str, owner: str, usage: StorageUsage) -> None:
    """Subtract from the usage of an owner. Usage of removed tenants is not counted."""
    if tenant in tx.writer_state.tenants:
        for counted_owner in (WHOLE_TENANT, owner):
            tx.effects.usage[tenant, counted_owner] += -usage


def _check_quota(
    tx: Transaction, tenant: str, scope: QuotaScope, owner: str, change: StorageUsage, limit: int | None
) -> QuotaEventData | None:
    if limit is None:
        return None
    increase = change.bytes + change.reserved
    current = tx.usage(tenant, owner)
    usage = current.bytes + current.reserved
    if increase > 0 and usage + increase > limit:
        raise QuotaExceeded(scope=scope, usage=usage, limit=limit, requested=increase)
    if not 5 * usage < 4 * limit <= 5 * (usage + increase):
        return None
    return QuotaEventData(scope=scope, owner=owner or None, usage_bytes=usage + increase, quota_bytes=limit)
