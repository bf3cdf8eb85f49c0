"""Reading what happened."""

from __future__ import annotations

from ingot.events.model import Event
from ingot.events.ports import EventLog
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, check_limit


class Events:
    """The log of one tenant, from any point onwards."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def read(self, tenant: str, *, after: str | None = None, limit: int = PAGE_ROWS_DEFAULT) -> list[Event]:
        """The next events after the id `after`, oldest first; an empty list means nothing new.

        Raises `InvalidCursor` when `after` is not the id of an event.
        """
        return await self._log.read_events(tenant, after=after, limit=check_limit(limit))
