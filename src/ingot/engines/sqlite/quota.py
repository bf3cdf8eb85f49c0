"""What tenants and owners keep, and how much they may."""

from __future__ import annotations

from typing import Literal

from ingot.blobs.errors import QuotaExceeded
from ingot.blobs.model import QuotaNews
from ingot.engines.sqlite.blob_rows import TOTAL, Kept
from ingot.engines.sqlite.transaction import Transaction

Scope = Literal["tenant", "token"]


def charge(
    tx: Transaction,
    tenant: str,
    owner: str,
    change: Kept,
    *,
    quota: int | None = None,
    back: tuple[str, Kept] | None = None,
) -> None:
    """Let an owner keep this much more, and, as part of the same, another this much. Raises `QuotaExceeded`.

    What takes no more than before is never refused, whatever the quota is now. Four fifths of a quota are told.
    """
    whole, own = change, change
    if back is not None:
        whole += back[1]
        own += back[1] if back[0] == owner else Kept()
    news = [
        _check(tx, tenant, "tenant", TOTAL, whole, tx.memory.limits[tenant].quota_bytes),
        _check(tx, tenant, "token", owner, own, quota),
    ]
    tx.staged.usage[tenant, TOTAL] += whole
    tx.staged.usage[tenant, owner] += change
    if back is not None:
        tx.staged.usage[tenant, back[0]] += back[1]
    tx.staged.events[tenant] += [("quota.warning", one) for one in news if one is not None]


def give_back(tx: Transaction, tenant: str, owner: str, kept: Kept) -> None:
    """An owner keeps this no more. Of a tenant that was removed nothing is counted."""
    if tenant in tx.memory.tenants:
        for whose in (TOTAL, owner):
            tx.staged.usage[tenant, whose] += -kept


def _check(tx: Transaction, tenant: str, scope: Scope, owner: str, change: Kept, limit: int | None) -> QuotaNews | None:
    if limit is None:
        return None
    more = change.bytes + change.reserved
    before = tx.usage(tenant, owner)
    usage = before.bytes + before.reserved
    if more > 0 and usage + more > limit:
        raise QuotaExceeded(scope=scope, usage=usage, limit=limit, asked=more)
    if not 5 * usage < 4 * limit <= 5 * (usage + more):
        return None
    return QuotaNews(scope=scope, owner=owner or None, usage_bytes=usage + more, quota_bytes=limit)
