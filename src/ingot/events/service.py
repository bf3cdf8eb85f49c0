"""Reading what happened."""

from __future__ import annotations

import re
from typing import Final

from ingot.events.model import Event
from ingot.events.ports import EventLog
from ingot.kernel.errors import InvalidInput
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, InvalidCursor, check_limit
from ingot.kernel.values import text

START: Final = ""  # Before every id.
_ID = re.compile(r"[0-9a-f]{16}")


class Events:
    """The log of one tenant, from any point onwards."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def read(self, tenant: str, *, after: str | None = None, limit: int = PAGE_ROWS_DEFAULT) -> list[Event]:
        """The next events after the id `after`, oldest first; an empty list means nothing new.

        Raises `InvalidCursor` when `after` is not the id of an event, and `InvalidInput`.
        """
        if after is not None:
            text(after, what="event id", hint="Pass event.id, a text.")
        return await self._log.read_events(_tenant(tenant), after=after, limit=check_limit(limit))

    async def newest(self, tenant: str) -> str:
        """Where the log ends now: reading on from there misses nothing that comes later. `START` of an empty log."""
        return await self._log.newest_event(_tenant(tenant)) or START

    async def check_place(self, tenant: str, after: str) -> str:
        """The id of an event to go on from. Raises `InvalidCursor` for one that no event of the tenant has yet."""
        known = _ID.fullmatch(text(after, what="event id", hint="Pass event.id, a text."))
        newest = await self._log.newest_event(_tenant(tenant), settled=False)
        if not known or after > (newest or START):
            raise InvalidCursor(
                f"{after[:64]!r} is not the id of an event here", hint="Leave it out to begin from now."
            )
        return after


def _tenant(value: str) -> str:
    text(value, what="tenant", hint="Pass tenant.id, a text.")
    if not value.isprintable():
        raise InvalidInput("the tenant has characters that no id has")
    return value
