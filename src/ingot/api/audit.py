"""The route of those who want to know who changed what."""

from __future__ import annotations

from ingot.events.audit import Entry
from ingot.events.audit_service import Audit
from ingot.http.request import Request
from ingot.http.routes import Granted, Route, routes_of
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, Page
from ingot.wire.jobs import PageLimit, RequestStruct


class AuditQuery(RequestStruct, frozen=True, kw_only=True):
    """Which acts to list: those that fit all that is given."""

    action: str | None = None
    """Only entries with this action, such as `token.created`."""
    who: str | None = None
    """Only changes made by this caller, such as `token:` and an ID."""
    target: str | None = None
    """Only changes to this target, such as `tenant/acme`."""
    all: bool = False
    """Whether to list the entries of all tenants and of the whole server. Operators only."""
    cursor: str | None = None
    """The `next_cursor` of the previous response, to continue the list."""
    limit: PageLimit = PAGE_ROWS_DEFAULT
    """Maximum number of entries."""


class AuditApi:
    """The audit log over HTTP."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    def routes(self) -> list[Route]:
        """The routes of this room."""
        return [routes_of("admin")("GET", "/admin/audit", self.list_acts, Granted("admin.audit"))]

    async def list_acts(self, call: Request, query: AuditQuery) -> Page[Entry]:
        """A page of what was done in the tenant, by whom and from where, newest first; everywhere with `all`."""
        if query.all:
            call.require_operator("sees what was done in all tenants")
        return await self._audit.list(
            None if query.all else call.tenant,
            action=query.action,
            who=query.who,
            target=query.target,
            cursor=query.cursor,
            limit=query.limit,
        )
