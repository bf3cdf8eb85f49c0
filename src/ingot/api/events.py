"""Routes of events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from ingot.events.errors import Gap
from ingot.events.feeds import Feeds
from ingot.events.ids import EventIds
from ingot.events.model import Event
from ingot.events.permissions import Permission, needed_permission
from ingot.events.service import Events
from ingot.http.request import Request, Response, StreamResponse
from ingot.http.routes import Granted, Route, route_factory
from ingot.identity.grants import Grant, allows
from ingot.kernel.errors import InvalidInput
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX, Page
from ingot.wire.events import PublishEventRequest, PublishEventResponse
from ingot.wire.jobs import PageLimit, RequestStruct

PAGE_BYTES_MAX = 4 * 1024 * 1024  # Data of the events of a page. Its last event may exceed this.
FIRST_QUERY_EVENTS_MAX = 64
NAMES_MAX = 100
CACHED_NAMES_MAX = 1000


class EventsQuery(RequestStruct, frozen=True, kw_only=True):
    """The events to list."""

    after: str | None = None
    """ID of the last event that was read. Without it, the list starts with the oldest event."""
    limit: PageLimit = PAGE_ROWS_DEFAULT
    """Maximum number of events."""


class StreamQuery(RequestStruct, frozen=True, kw_only=True):
    """The events to stream. The header `Last-Event-ID` takes precedence over `after`."""

    after: str | None = None
    """ID of the last event that was read, or sixteen zeros for the beginning. Default: start with the next event."""
    name: str | None = None
    """Prefixes of event names in whole segments, separated by commas, such as `job.failed,worker`."""


class EventFilter:
    """Selects events by name: those that the grants of a caller allow and the request asks for."""

    def __init__(self, grants: tuple[Grant, ...], names: tuple[str, ...]) -> None:
        self._grants = grants
        self._names = names
        self._cache: dict[str, bool] = {}

    def matches(self, name: str, needs: Permission | None) -> bool:
        """Return whether events with this name are selected that need this permission.

        The result by name is cached, because every event is checked.
        """
        return self._matches_name(name) and (needs is None or allows(self._grants, *needs))

    def _matches_name(self, name: str) -> bool:
        selected = self._cache.get(name)
        if selected is None:
            if len(self._cache) >= CACHED_NAMES_MAX:
                self._cache.clear()
            selected = self._cache[name] = self._is_requested(name) and allows(
                self._grants, "events.read", f"events/{name}"
            )
        return selected

    def _is_requested(self, name: str) -> bool:
        return not self._names or any(f"{name}.".startswith(f"{prefix}.") for prefix in self._names)


class EventsApi:
    """Routes of events."""

    def __init__(self, events: Events, feeds: Feeds, event_ids: EventIds) -> None:
        self._events = events
        self._feeds = feeds
        self._ids = event_ids
        self._filters: WeakValueDictionary[tuple[tuple[Grant, ...], tuple[str, ...]], EventFilter] = (
            WeakValueDictionary()
        )

    def routes(self) -> list[Route]:
        """Return the routes of this module."""
        read, create = Granted("events.read"), Granted("events.create")
        repeatable: dict[str, Any] = {"status": 201, "other_statuses": (200,), "headers": ("Idempotency-Key",)}
        route = route_factory("events")
        return [
            route("GET", "/events", self.list, read),
            route("POST", "/events", self.publish, create, **repeatable),
            route("GET", "/events/stream", self.stream, read, rate="wait", headers=("Last-Event-ID",)),
        ]

    async def list(self, request: Request, query: EventsQuery) -> Page[Event]:
        """List events, oldest first. Send `next_cursor` as `after` to continue.

        A page may be short although more events follow.
        """
        tenant = request.tenant
        position = None if query.after is None else self._ids.open(tenant, query.after)
        if position is not None:
            await self._events.check_position(tenant, position)
        try:
            items, position = await self._read_visible(request, position, query.limit)
        except Gap as gap:
            raise Gap(self._ids.seal(tenant, gap.after)) from None
        return Page(
            items=[msgspec.structs.replace(event, id=self._ids.seal(tenant, event.id)) for event in items],
            next_cursor=None if position is None else self._ids.seal(tenant, position),
        )

    async def _read_visible(
        self, request: Request, after: str | None, limit: int
    ) -> tuple[Sequence[Event], str | None]:
        """Return events that the caller may see, and the position after them.

        Events that it may not see change neither, unless there are more than `PAGE_ROWS_MAX` of them in a row. The size
        of each query follows from the average size of the events read so far.
        """
        event_filter = self._filter_of(request.caller.grants, ())
        sees_all = all(request.caller.may(action) for action in ("events.read", "blobs.read", "jobs.read"))
        rows_max = limit if sees_all else PAGE_ROWS_MAX
        visible: list[Event] = []
        position, rows, read_bytes, page_bytes = after, 0, 0, 0
        query_limit = min(rows_max, FIRST_QUERY_EVENTS_MAX)
        while rows < rows_max:
            events = await self._events.read(request.tenant, after=position, limit=query_limit)
            for event in events:
                if event_filter.matches(event.name, needed_permission(event)):
                    visible.append(event)
                    page_bytes += len(event.data)
                    if len(visible) == limit or page_bytes >= PAGE_BYTES_MAX:
                        return visible, event.id
            if len(events) < query_limit:
                return visible, visible[-1].id if visible else after
            position, rows = events[-1].id, rows + len(events)
            read_bytes += sum(len(event.data) for event in events)
            events_that_fit = round(PAGE_BYTES_MAX * rows / max(1, read_bytes))
            query_limit = min(rows_max - rows, max(1, events_that_fit))
        return visible, visible[-1].id if visible else position

    async def publish(self, request: Request, body: PublishEventRequest) -> Response[PublishEventResponse]:
        """Publish an event of your own. Return 200 if it was published before with the same key."""
        request.require("events.create", f"events/{body.name}")
        key = request.resolve_idempotency_key(body.dedupe_key)
        event = await self._events.publish(request.tenant, body.name, bytes(body.data), dedupe_key=key)
        shown_id = self._ids.seal(request.tenant, event.id)
        return Response(PublishEventResponse(id=shown_id, cursor=shown_id), 201 if event.created else 200)

    async def stream(self, request: Request, query: StreamQuery) -> StreamResponse:
        """Stream events as they happen: new ones only, or all after `Last-Event-ID`."""
        event_filter = self._filter_of(request.caller.grants, _parse_names(query.name))
        shown_id = request.headers.get("last-event-id") or query.after
        after = None if shown_id is None else self._ids.open(request.tenant, shown_id)
        return StreamResponse(await self._feeds.follow(request.tenant, after, event_filter.matches))

    def _filter_of(self, grants: tuple[Grant, ...], names: tuple[str, ...]) -> EventFilter:
        """Return a filter that all streams with the same grants and names share."""
        event_filter = self._filters.get((grants, names))
        if event_filter is None:
            event_filter = self._filters[grants, names] = EventFilter(grants, names)
        return event_filter


def _parse_names(comma_separated: str | None) -> tuple[str, ...]:
    if comma_separated is None:
        return ()
    names = sorted({name.removesuffix(".*") for name in comma_separated.split(",")})
    if not all(names) or len(names) > NAMES_MAX:
        raise InvalidInput(
            f"name must have 1 to {NAMES_MAX} names and no empty one, got {len(names)}",
            hint="Separate names with commas, as in name=job.failed,worker.",
        )
    return tuple(names)
