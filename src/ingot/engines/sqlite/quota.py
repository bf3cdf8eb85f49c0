"""What tenants and owners keep, and how much they may."""

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
    """Let an owner keep this much more, and, as part of the same, another this much. Raises `QuotaExceeded`.

    What takes no more than before is never refused, whatever the quota is now. Four fifths of a quota are told.
    """
    whole, own = change, change
    if refund is not None:
        whole += refund[1]
        own += refund[1] if refund[0] == owner else StorageUsage()
    news = [
        _check_quota(tx, tenant, "tenant", WHOLE_TENANT, whole, tx.writer_state.limits[tenant].quota_bytes),
        _check_quota(tx, tenant, "token", owner, own, quota),
    ]
    tx.effects.usage[tenant, WHOLE_TENANT] += whole
    tx.effects.usage[tenant, owner] += change
    if refund is not None:
        tx.effects.usage[tenant, refund[0]] += refund[1]
    tx.effects.events[tenant] += [("quota.warning", one) for one in news if one is not None]


def refund_usage(tx: Transaction, tenant: str, owner: str, kept: StorageUsage) -> None:
    """An owner keeps this no more. Of a tenant that was removed nothing is counted."""
    if tenant in tx.writer_state.tenants:
        for whose in (WHOLE_TENANT, owner):
            tx.effects.usage[tenant, whose] += -kept


def _check_quota(
    tx: Transaction, tenant: str, scope: QuotaScope, owner: str, change: StorageUsage, limit: int | None
) -> QuotaEventData | None:
    if limit is None:
        return None
    more = change.bytes + change.reserved
    before = tx.usage(tenant, owner)
    usage = before.bytes + before.reserved
    if more > 0 and usage + more > limit:
        raise QuotaExceeded(scope=scope, usage=usage, limit=limit, requested=more)
    if not 5 * usage < 4 * limit <= 5 * (usage + more):
        return None
    return QuotaEventData(scope=scope, owner=owner or None, usage_bytes=usage + more, quota_bytes=limit)
