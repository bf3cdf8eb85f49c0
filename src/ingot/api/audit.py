"""The route of the audit log."""

from __future__ import annotations

from ingot.events.audit import Entry
from ingot.events.audit_service import Audit
from ingot.http.request import Request
from ingot.http.routes import Granted, Route, route_factory
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, Page
from ingot.wire.jobs import PageLimit, RequestStruct


class AuditQuery(RequestStruct, frozen=True, kw_only=True):
    """A filter for entries of the audit log. An entry must fit all fields that are set."""

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
    """Route of the audit log."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    def routes(self) -> list[Route]:
        """Return the routes of this module."""
        return [route_factory("admin")("GET", "/admin/audit", self.list_acts, Granted("admin.audit"))]

    async def list_acts(self, request: Request, query: AuditQuery) -> Page[Entry]:
        """List the entries of the audit log, newest first."""
        if query.all:
            request.require_operator("can read the audit log of all tenants")
        return await self._audit.list(
            None if query.all else request.tenant,
            action=query.action,
            who=query.who,
            target=query.target,
            cursor=query.cursor,
            limit=query.limit,
        )
