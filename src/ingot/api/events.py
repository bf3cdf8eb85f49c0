"""Routes of those who want to know what happens."""

from __future__ import annotations

from ingot.events.model import Event
from ingot.events.service import Events
from ingot.http.call import Call
from ingot.http.table import PREFIX, Granted, Route
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, Page
from ingot.wire.jobs import Limit, Request


class EventsQuery(Request, frozen=True, kw_only=True):
    """Where to go on, and how far."""

    after: str | None = None
    limit: Limit = PAGE_ROWS_DEFAULT


class EventsApi:
    """Events over HTTP."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def routes(self) -> list[Route]:
        """The routes of this room."""
        return [
            Route(
                method="GET",
                path=f"{PREFIX}/events",
                handler=self.list,
                needs=Granted("events.read"),
                room="events",
            ),
        ]

    async def list(self, call: Call, query: EventsQuery) -> Page[Event]:
        """The next events that the caller may see, oldest first. Go on with `next_cursor` as `after`."""
        found = await self._events.read(call.tenant, after=query.after, limit=query.limit)
        items = [event for event in found if call.caller.may("events.read", f"events/{event.name}")]
        return Page(items=items, next_cursor=found[-1].id if found else query.after)
