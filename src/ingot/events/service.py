"""The service that reads and publishes events."""

from __future__ import annotations

import re
from typing import Final

from ingot.events import checks
from ingot.events.model import Event, Forgotten, Published
from ingot.events.ports import EventLog, ForgetEvents, GetNewestEventId, PublishEvent, ReadEvents
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, InvalidCursor, check_limit
from ingot.kernel.validation import check_text

START: Final = ""  # The position before the first event of a log.
_EVENT_ID = re.compile(r"[0-9a-f]{16}")


class Events:
    """The event logs of all tenants."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def read(self, tenant: str, *, after: str | None = None, limit: int = PAGE_ROWS_DEFAULT) -> list[Event]:
        """Return the events that follow the ID `after`, oldest first. An empty list means that there is nothing new.

        Raises `InvalidCursor` if `after` is not an event ID, `Gap` if events that follow it were removed, and
        `InvalidInput`.
        """
        if after is not None:
            check_text(after, name="event ID", hint="Pass event.id, a string.")
        return await self._log.run(ReadEvents(tenant=checks.tenant_id(tenant), after=after, limit=check_limit(limit)))

    async def newest(self, tenant: str) -> str:
        """Return the current end of the log, or `START` if it is empty. Reading from there misses no later event."""
        return await self._log.run(GetNewestEventId(tenant=checks.tenant_id(tenant))) or START

    async def check_position(self, tenant: str, after: str) -> str:
        """Return `after` if reading can continue from there. Raises `InvalidCursor` if no event has reached this ID."""
        is_event_id = _EVENT_ID.fullmatch(check_text(after, name="event ID", hint="Pass event.id, a string."))
        newest = await self._log.run(GetNewestEventId(tenant=checks.tenant_id(tenant), stable=False))
        if not is_event_id or after > (newest or START):
            raise InvalidCursor(
                f"{after[:64]!r} is not the ID of an event in this tenant",
                hint="Use the ID of an event that you have read, or omit it to start with the next event.",
            )
        return after

    async def publish(self, tenant: str, name: str, data: object = None, *, dedupe_key: str | None = None) -> Published:
        """Append an event of your own. `data` is a JSON value, or `bytes` of JSON text stored as received.

        If the same `dedupe_key` was used within the last day, the first event is returned and nothing is appended.
        Raises `InvalidInput`, `EventTooLarge`, `IdempotencyMismatch` or `TenantNotFound`.
        """
        name, data_text = checks.event_name(name), checks.event_data(data)
        key = checks.dedupe_key(dedupe_key)
        return await self._log.run(
            PublishEvent(
                tenant=checks.tenant_id(tenant),
                name=name,
                data=data_text,
                dedupe_key=key,
                digest=None if key is None else checks.event_digest(name, data_text),
            )
        )

    async def forget(self, *, keep: int | None, limit: int) -> Forgotten:
        """Remove events older than `keep` microseconds now. The retention loop does this automatically."""
        return await self._log.run(ForgetEvents(keep=keep, limit=limit))
