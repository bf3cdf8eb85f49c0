"""What the event log asks of an engine."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from ingot.events.model import Event


class EventLog(Protocol):
    """A log that an engine appends to inside the command that makes the change."""

    def read_events(self, tenant: str, *, after: str | None, limit: int) -> Awaitable[list[Event]]:
        """Up to `limit` events of one tenant after the event `after`, oldest first.

        A committed event whose id is below one already read never appears later: reading on from the
        last id seen misses nothing and repeats nothing. `TenantNotFound` for a tenant that is not there.
        """
