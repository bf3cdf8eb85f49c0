"""Reading the audit log."""

from __future__ import annotations

from ingot.events import checks
from ingot.events.audit import AuditFilter, Entry, ListActs
from ingot.kernel.commands import Store
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, Page, check_limit, page_by_id, read_place
from ingot.kernel.values import storable, text


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
            tenant=None if tenant is None else checks.tenant(tenant),
            action=_text(action, what="action"),
            who=_text(who, what="who"),
            target=_text(target, what="target"),
        )
        bound_to = ("audit", which.tenant, which.action, which.who, which.target)
        before = read_place(cursor, bound_to=bound_to)
        found = await self._log.run(ListActs(which=which, before=before, limit=check_limit(limit)))
        return page_by_id(found, limit=limit, bound_to=bound_to)


def _text(value: object, *, what: str) -> str | None:
    return None if value is None else storable(text(value, what=what), what=what)
