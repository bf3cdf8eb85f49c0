"""What the event log asks of an engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from ingot.events.model import Event


class EventLog(Protocol):
    """A log that an engine appends to inside the command that makes the change."""

    def read_events(self, tenant: str, *, after: str | None, limit: int) -> Awaitable[list[Event]]:
        """Up to `limit` events of one tenant after the event `after`, oldest first.

        A committed event whose id is below one already read never appears later: reading on from the
        last id seen misses nothing and repeats nothing. `TenantNotFound` for a tenant that is not there.
        """

    def newest_event(self, tenant: str, *, settled: bool = True) -> Awaitable[str | None]:
        """The id of a tenant's newest event, or `None` when it has none. `TenantNotFound` for one that is not there.

        Reading on from it misses nothing that is committed later. Without `settled` it is the newest that is committed,
        and one that is not committed yet may still come before it.
        """

    def on_event(self, tell: Callable[[str], None]) -> None:
        """Call `tell(tenant)` on the event loop after events of a tenant were committed here. Only a hint."""
