"""Routes of those who want to know what happens."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from ingot.events.feeds import Feeds
from ingot.events.model import Event
from ingot.events.service import Events
from ingot.http.request import Request, Response, StreamResponse
from ingot.http.routes import Granted, Route, routes_of
from ingot.identity.grants import Grant, allows
from ingot.kernel.errors import InvalidInput
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, Page
from ingot.wire.events import PublishEventRequest, PublishEventResponse
from ingot.wire.jobs import PageLimit, RequestStruct

NAMES_MAX = 100
CACHED_NAMES_MAX = 1000


class EventsQuery(RequestStruct, frozen=True, kw_only=True):
    """Where to go on, and how far."""

    after: str | None = None
    """ID of the last event that was read. Without it, the list starts with the oldest event."""
    limit: PageLimit = PAGE_ROWS_DEFAULT
    """Maximum number of events."""


class StreamQuery(RequestStruct, frozen=True, kw_only=True):
    """Where to go on (the header Last-Event-ID says it too, and counts more), and which names to tell of.

    `name` has the beginnings of names, in whole segments, with commas between them.
    """

    after: str | None = None
    """ID of the last event that was read. Without it, the stream starts with the next new event."""
    name: str | None = None
    """Prefixes of event names in whole segments, separated by commas, such as `job.failed,worker`."""


class EventFilter:
    """Which events somebody sees, by their names: those the grants allow, and of these the ones asked for."""

    def __init__(self, grants: tuple[Grant, ...], names: tuple[str, ...]) -> None:
        self._grants = grants
        self._names = names
        self._cache: dict[str, bool] = {}

    def matches(self, name: str) -> bool:
        """Whether an event of this name is seen. Asked for every event, and found out once."""
        seen = self._cache.get(name)
        if seen is None:
            if len(self._cache) >= CACHED_NAMES_MAX:
                self._cache.clear()
            seen = self._cache[name] = self._is_requested(name) and allows(
                self._grants, "events.read", f"events/{name}"
            )
        return seen

    def _is_requested(self, name: str) -> bool:
        return not self._names or any(f"{name}.".startswith(f"{asked}.") for asked in self._names)


class EventsApi:
    """Events over HTTP."""

    def __init__(self, events: Events, feeds: Feeds) -> None:
        self._events = events
        self._feeds = feeds
        self._filters: WeakValueDictionary[tuple[tuple[Grant, ...], tuple[str, ...]], EventFilter] = (
            WeakValueDictionary()
        )

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

    async def list(self, call: Request, query: EventsQuery) -> Page[Event]:
        """The next events that the caller may see, oldest first. Go on with `next_cursor` as `after`."""
        if query.after is not None:
            await self._events.check_position(call.tenant, query.after)
        found = await self._events.read(call.tenant, after=query.after, limit=query.limit)
        items = [event for event in found if call.caller.may("events.read", f"events/{event.name}")]
        return Page(items=items, next_cursor=found[-1].id if found else query.after)

    async def publish(self, call: Request, body: PublishEventRequest) -> Response[PublishEventResponse]:
        """Append an event of your own."""
        call.require("events.create", f"events/{body.name}")
        key = call.resolve_idempotency_key(body.dedupe_key)
        made = await self._events.publish(call.tenant, body.name, bytes(body.data), dedupe_key=key)
        return Response(PublishEventResponse(id=made.id, cursor=made.id), 201 if made.created else 200)

    async def stream(self, call: Request, query: StreamQuery) -> StreamResponse:
        """The events that the caller may see, as they happen: from now, or from the one that `Last-Event-ID` names."""
        view = self._filter_of(call.caller.grants, _parse_names(query.name))
        after = call.headers.get("last-event-id") or query.after
        return StreamResponse(await self._feeds.follow(call.tenant, after, view.matches))

    def _filter_of(self, grants: tuple[Grant, ...], names: tuple[str, ...]) -> EventFilter:
        """Those who see the same share one view."""
        view = self._filters.get((grants, names))
        if view is None:
            view = self._filters[grants, names] = EventFilter(grants, names)
        return view


def _parse_names(given: str | None) -> tuple[str, ...]:
    if given is None:
        return ()
    names = sorted({name.removesuffix(".*") for name in given.split(",")})
    if not all(names) or len(names) > NAMES_MAX:
        raise InvalidInput(
            f"name has {len(names)} names, or an empty one; it goes up to {NAMES_MAX}",
            hint="Write them with commas between, as in name=job.failed,worker.",
        )
    return tuple(names)
