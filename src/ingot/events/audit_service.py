"""Reading the audit log."""

from __future__ import annotations

from ingot.events import checks
from ingot.events.audit import AuditFilter, Entry, ListAuditEntries
from ingot.kernel.commands import Store
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, Page, check_limit, decode_cursor_position, page_by_id
from ingot.kernel.validation import check_storable, check_text


class Audit:
    """What was done, by whom and from where, newest first."""

    def __init__(self, log: Store) -> None:
        self._log = log

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
        """A page of what was done in a tenant, or with `None` in all of them and to the whole place.

        Raises `InvalidInput` or `TenantNotFound`.
        """
        which = AuditFilter(
            tenant=None if tenant is None else checks.tenant_id(tenant),
            action=_check_optional_text(action, name="action"),
            who=_check_optional_text(who, name="who"),
            target=_check_optional_text(target, name="target"),
        )
        bound_to = ("audit", which.tenant, which.action, which.who, which.target)
        before = decode_cursor_position(cursor, bound_to=bound_to)
        found = await self._log.run(ListAuditEntries(filter=which, before=before, limit=check_limit(limit)))
        return page_by_id(found, limit=limit, bound_to=bound_to)


def _check_optional_text(value: object, *, name: str) -> str | None:
    return None if value is None else check_storable(check_text(value, name=name), name=name)
