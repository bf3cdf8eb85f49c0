"""Reading what happened."""

from __future__ import annotations

from ingot.events.model import Event
from ingot.events.ports import EventLog
from ingot.kernel.errors import InvalidInput
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, check_limit
from ingot.kernel.values import text


class Events:
    """The log of one tenant, from any point onwards."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def read(self, tenant: str, *, after: str | None = None, limit: int = PAGE_ROWS_DEFAULT) -> list[Event]:
        """The next events after the id `after`, oldest first; an empty list means nothing new.

        Raises `InvalidCursor` when `after` is not the id of an event, and `InvalidInput`.
        """
        text(tenant, what="tenant", hint="Pass tenant.id, a text.")
        if not tenant.isprintable():
            raise InvalidInput("the tenant has characters that no id has")
        if after is not None:
            text(after, what="event id", hint="Pass event.id, a text.")
        return await self._log.read_events(tenant, after=after, limit=check_limit(limit))
