"""The service that reads the audit log."""

from __future__ import annotations

from ingot.events import checks
from ingot.events.audit import AuditFilter, Entry, ListAuditEntries
from ingot.kernel.commands import Store
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, Page, check_limit, decode_cursor_position, page_by_id
from ingot.kernel.validation import check_storable, check_text


class Audit:
    """The audit log: administrative changes with their authors, newest first."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list(
        self,
        tenant: str | None,
        *,
        action: str | None = None,
        who: str | None = None,
        target: str | None = None,
        cursor: str | None = None,
        limit: int = PAGE_ROWS_DEFAULT,
    ) -> Page[Entry]:
        """Return a page of the entries that match all filters, newest first.

        `tenant=None` selects the entries of all tenants and of the whole server. Raises `InvalidInput` or
        `TenantNotFound`.
        """
        audit_filter = AuditFilter(
            tenant=None if tenant is None else checks.tenant_id(tenant),
            action=_check_optional_text(action, name="action"),
            who=_check_optional_text(who, name="who"),
            target=_check_optional_text(target, name="target"),
        )
        bound_to = ("audit", audit_filter.tenant, audit_filter.action, audit_filter.who, audit_filter.target)
        before = decode_cursor_position(cursor, bound_to=bound_to)
        entries = await self._store.run(ListAuditEntries(filter=audit_filter, before=before, limit=check_limit(limit)))
        return page_by_id(entries, limit=limit, bound_to=bound_to)


def _check_optional_text(value: object, *, name: str) -> str | None:
    return None if value is None else check_storable(check_text(value, name=name), name=name)
