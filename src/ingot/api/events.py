"""Routes of those who want to know what happens."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from ingot.events.feeds import Feeds
from ingot.events.model import Event
from ingot.events.service import Events
from ingot.http.call import Answer, Call, Stream
from ingot.http.table import Granted, Route, routes_of
from ingot.identity.grants import Grant, allows
from ingot.kernel.errors import InvalidInput
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, Page
from ingot.wire.events import EventMade, EventOrder
from ingot.wire.jobs import Limit, Request

NAMES_MAX = 100
KNOWN_NAMES_MAX = 1000


class EventsQuery(Request, frozen=True, kw_only=True):
    """Where to go on, and how far."""

    after: str | None = None
    limit: Limit = PAGE_ROWS_DEFAULT


class StreamQuery(Request, frozen=True, kw_only=True):
    """Where to go on (the header Last-Event-ID says it too, and counts more), and which names to tell of.

    `name` has the beginnings of names, in whole segments, with commas between them.
    """

    after: str | None = None
    name: str | None = None


class View:
    """Which events somebody sees, by their names: those the grants allow, and of these the ones asked for."""

    def __init__(self, grants: tuple[Grant, ...], names: tuple[str, ...]) -> None:
        self._grants = grants
        self._names = names
        self._known: dict[str, bool] = {}

    def sees(self, name: str) -> bool:
        """Whether an event of this name is seen. Asked for every event, and found out once."""
        seen = self._known.get(name)
        if seen is None:
            if len(self._known) >= KNOWN_NAMES_MAX:
                self._known.clear()
            seen = self._known[name] = self._asked_for(name) and allows(self._grants, "events.read", f"events/{name}")
        return seen

    def _asked_for(self, name: str) -> bool:
        return not self._names or any(f"{name}.".startswith(f"{asked}.") for asked in self._names)


class EventsApi:
    """Events over HTTP."""

    def __init__(self, events: Events, feeds: Feeds) -> None:
        self._events = events
        self._feeds = feeds
        self._views: WeakValueDictionary[tuple[tuple[Grant, ...], tuple[str, ...]], View] = WeakValueDictionary()

    def routes(self) -> list[Route]:
        """The routes of this room."""
        read, create = Granted("events.read"), Granted("events.create")
        keyed: dict[str, Any] = {"status": 201, "other_statuses": (200,), "headers": ("Idempotency-Key",)}
        route = routes_of("events")
        return [
            route("GET", "/events", self.list, read),
            route("POST", "/events", self.publish, create, **keyed),
            route("GET", "/events/stream", self.stream, read, rate="wait", headers=("Last-Event-ID",)),
        ]

    async def list(self, call: Call, query: EventsQuery) -> Page[Event]:
        """The next events that the caller may see, oldest first. Go on with `next_cursor` as `after`."""
        if query.after is not None:
            await self._events.check_place(call.tenant, query.after)
        found = await self._events.read(call.tenant, after=query.after, limit=query.limit)
        items = [event for event in found if call.caller.may("events.read", f"events/{event.name}")]
        return Page(items=items, next_cursor=found[-1].id if found else query.after)

    async def publish(self, call: Call, body: EventOrder) -> Answer[EventMade]:
        """Append an event of your own."""
        call.expect("events.create", f"events/{body.name}")
        key = call.key_of(body.dedupe_key)
        made = await self._events.publish(call.tenant, body.name, bytes(body.data), dedupe_key=key)
        return Answer(EventMade(id=made.id, cursor=made.id), 201 if made.created else 200)

    async def stream(self, call: Call, query: StreamQuery) -> Stream:
        """The events that the caller may see, as they happen: from now, or from the one that `Last-Event-ID` names."""
        view = self._view(call.caller.grants, _names(query.name))
        after = call.headers.get("last-event-id") or query.after
        return Stream(await self._feeds.follow(call.tenant, after, view.sees))

    def _view(self, grants: tuple[Grant, ...], names: tuple[str, ...]) -> View:
        """Those who see the same share one view."""
        view = self._views.get((grants, names))
        if view is None:
            view = self._views[grants, names] = View(grants, names)
        return view


def _names(given: str | None) -> tuple[str, ...]:
    if given is None:
        return ()
    names = sorted({name.removesuffix(".*") for name in given.split(",")})
    if not all(names) or len(names) > NAMES_MAX:
        raise InvalidInput(
            f"name has {len(names)} names, or an empty one; it goes up to {NAMES_MAX}",
            hint="Write them with commas between, as in name=job.failed,worker.",
        )
    return tuple(names)
