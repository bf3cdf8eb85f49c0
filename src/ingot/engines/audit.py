"""Rows of the audit log, as both engines read them."""

from __future__ import annotations

import msgspec

from ingot.events.audit import Entry
from ingot.kernel.clock import to_datetime


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `audit`."""

    id: str
    tenant: str | None
    at: int
    who: str
    name: str | None
    action: str
    target: str
    address: str | None
    request_id: str | None
    before: msgspec.Raw
    after: msgspec.Raw

    def entry(self) -> Entry:
        """The entry."""
        return Entry(
            id=self.id,
            at=to_datetime(self.at),
            tenant=self.tenant,
            who=self.who,
            name=self.name,
            action=self.action,
            target=self.target,
            address=self.address,
            request_id=self.request_id,
            before=self.before.copy(),
            after=self.after.copy(),
        )
