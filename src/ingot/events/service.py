"""Reading what happened, and telling what did."""

from __future__ import annotations

import re
from typing import Final

from ingot.events import checks
from ingot.events.model import Event, Forgotten, Published
from ingot.events.ports import EventLog, ForgetEvents, GetNewestEventId, PublishEvent, ReadEvents
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, InvalidCursor, check_limit
from ingot.kernel.validation import check_text

START: Final = ""  # Before every id.
_EVENT_ID = re.compile(r"[0-9a-f]{16}")


class Events:
    """The log of one tenant, from any point onwards."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def read(self, tenant: str, *, after: str | None = None, limit: int = PAGE_ROWS_DEFAULT) -> list[Event]:
        """The next events after the id `after`, oldest first; an empty list means nothing new.

        Raises `InvalidCursor` when `after` is not the id of an event, `Gap` when events behind it are not kept any
        more, and `InvalidInput`.
        """
        if after is not None:
            check_text(after, name="event id", hint="Pass event.id, a text.")
        return await self._log.run(ReadEvents(tenant=checks.tenant_id(tenant), after=after, limit=check_limit(limit)))

    async def newest(self, tenant: str) -> str:
        """Where the log ends now: reading on from there misses nothing that comes later. `START` of an empty log."""
        return await self._log.run(GetNewestEventId(tenant=checks.tenant_id(tenant))) or START

    async def check_position(self, tenant: str, after: str) -> str:
        """The id of an event to go on from. Raises `InvalidCursor` for one that no event of the tenant has yet."""
        known = _EVENT_ID.fullmatch(check_text(after, name="event id", hint="Pass event.id, a text."))
        newest = await self._log.run(GetNewestEventId(tenant=checks.tenant_id(tenant), stable=False))
        if not known or after > (newest or START):
            raise InvalidCursor(
                f"{after[:64]!r} is not the id of an event here", hint="Leave it out to begin from now."
            )
        return after

    async def publish(self, tenant: str, name: str, data: object = None, *, dedupe_key: str | None = None) -> Published:
        """Append an event of your own. `data` is a JSON value, or `bytes` of JSON text kept as received.

        The same `dedupe_key` within a day answers with the first event, and appends nothing. Raises `InvalidInput`,
        `EventTooLarge`, `IdempotencyMismatch` or `TenantNotFound`.
        """
        checked, text_of_data = checks.event_name(name), checks.event_data(data)
        key = checks.dedupe_key(dedupe_key)
        return await self._log.run(
            PublishEvent(
                tenant=checks.tenant_id(tenant),
                name=checked,
                data=text_of_data,
                dedupe_key=key,
                digest=None if key is None else checks.event_digest(checked, text_of_data),
            )
        )

    async def forget(self, *, keep: int | None, limit: int) -> Forgotten:
        """Remove old events and keys now; the retention loop does this by itself."""
        return await self._log.run(ForgetEvents(keep=keep, limit=limit))
