"""Following the log: it is read once for all who follow a tenant, however many they are.

Nothing is kept for a single follower but its place in the log. The newest events are kept once, ready to be sent; who
is further behind than those reads the log itself, and comes back to them without gap or repeat, as both go by ids.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from ingot.events.errors import Gap
from ingot.events.model import Event
from ingot.events.service import Events
from ingot.kernel.clock import Clock, to_datetime
from ingot.kernel.errors import NotFound
from ingot.kernel.logs import report
from ingot.kernel.waits import wait_for

POLL_SECONDS: Final = 0.15
GATHER_SECONDS: Final = 0.01  # What happens within so little time is sent together.
POLL_AFTER_ERROR_SECONDS: Final = 1.0
HEARTBEAT_SECONDS: Final = 15.0  # Nobody hears nothing for longer.
TICK_SECONDS: Final = 5.0
STATS_SECONDS: Final = 1.0
READ_EVENTS: Final = 200
READ_EVENTS_MIN: Final = 8
RECENT_EVENTS_MAX: Final = 2000
RECENT_BYTES_MAX: Final = 8 * 1024 * 1024
PART_BYTES_MAX: Final = 256 * 1024
PARTS_KEPT_MAX: Final = 64
CATCHING_UP_MAX: Final = 2  # So many followers read the log at once, and leave room for everybody else.
STATS: Final = "stats.updated"
OPENING: Final = b"retry: 2000\n\n"
HEARTBEAT: Final = b": nothing new\n\n"

Sees = Callable[[str], bool]
Stats = Callable[[str], Awaitable[object]]
_encode = msgspec.json.Encoder().encode


class Told(msgspec.Struct, frozen=True, gc=False):
    """An event as it is sent."""

    id: str
    name: str
    frame: bytes


class Place(msgspec.Struct, frozen=True, gc=False):
    """How far a follower has come: the last event, and the last statistics."""

    after: str
    stats: int


class Part(msgspec.Struct, frozen=True, gc=False):
    """What is sent together, the place behind it, and the number of events it goes past."""

    frames: bytes
    place: Place
    events: int = 0


class Feed:
    """The newest events of one tenant, all of those behind `_floor`, as long as somebody follows."""

    def __init__(self, events: Events, tenant: str, begin: str, *, clock: Clock, stats: Stats | None) -> None:
        self._events = events
        self._tenant = tenant
        self._clock = clock
        self._count = stats
        self._floor = self._last = begin
        self._recent: list[Told] = []
        self._ids: list[str] = []
        self.kept_bytes = 0
        self._parts: dict[tuple[Place, Sees], Part] = {}
        self.stats_number = 0
        self._stats, self._stats_at, self._stats_old = b"", 0.0, False
        self.news = asyncio.Event()
        self._told_at = 0.0
        self._hint = asyncio.Event()
        self._catching_up = asyncio.Semaphore(CATCHING_UP_MAX)
        self.followers = 0
        self._reading = asyncio.create_task(self._read(), name=f"events.feed {tenant}")

    def hint(self) -> None:
        """There may be something new."""
        self._hint.set()

    async def end(self) -> None:
        """Read no more."""
        self._reading.cancel()
        await asyncio.wait([self._reading])

    # -- reading the log ------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Read on and on; what fails is tried again."""
        while True:
            self._hint.clear()
            pause = POLL_SECONDS
            try:
                more = await self._look()
                pause = 0.0 if more else POLL_SECONDS
            except NotFound:  # The tenant was removed: there is nothing more to read, and who follows it is let go.
                return
            except Exception as error:
                report("feed_failed", error, tenant_id=self._tenant)
                pause = POLL_AFTER_ERROR_SECONDS
            if _now() - self._told_at >= TICK_SECONDS:
                self._wake()
            await asyncio.sleep(min(pause, GATHER_SECONDS))
            await wait_for(self._hint, pause)

    async def _look(self) -> bool:
        """Take in what is new, and tell whether there may be more."""
        try:
            found = await self._events.read(self._tenant, after=self._last or None, limit=READ_EVENTS)
        except Gap as gap:
            self._skip(gap.after)
            return True
        if found:
            self._take([told_of(event) for event in found])
            self._stats_old = True
        if self._stats_old and self._count is not None and _now() - self._stats_at >= STATS_SECONDS:
            await self._take_stats(self._count)
        return len(found) == READ_EVENTS

    def _take(self, told: Sequence[Told]) -> None:
        self._recent += told
        self._ids += [one.id for one in told]
        self.kept_bytes += sum(len(one.frame) for one in told)
        self._last = told[-1].id
        gone = max(0, len(self._recent) - RECENT_EVENTS_MAX)
        self.kept_bytes -= sum(len(one.frame) for one in self._recent[:gone])
        while self.kept_bytes > RECENT_BYTES_MAX:
            self.kept_bytes -= len(self._recent[gone].frame)
            gone += 1
        if gone:
            self._floor = self._ids[gone - 1]
            del self._recent[:gone], self._ids[:gone]
        self._wake()

    def _skip(self, after: str) -> None:
        """What was to come next is not kept any more: those who follow read the log, and are told so there."""
        self._floor = self._last = after
        self._recent, self._ids, self.kept_bytes = [], [], 0
        self._wake()

    async def _take_stats(self, count: Stats) -> None:
        self._stats_at, self._stats_old = _now(), False
        self._stats = frame_of_stats(self._tenant, self._clock.micros(), await count(self._tenant))
        self.stats_number += 1
        self._wake()

    def _wake(self) -> None:
        self._parts.clear()
        self._told_at = _now()
        self.news.set()
        self.news = asyncio.Event()

    # -- following ------------------------------------------------------------------------------------------

    def has(self, place: Place) -> bool:
        """Whether all that follows a place is among the newest."""
        return place.after >= self._floor

    def next(self, place: Place, sees: Sees) -> Part:
        """What follows a place among the newest. Most are at the same place, and are sent the same."""
        part = self._parts.get((place, sees))
        if part is None:
            recent = self._recent[bisect_right(self._ids, place.after) :]
            part = _part(recent, place, sees)
            if part.place.after >= self._last and self.stats_number > place.stats:
                stats = self._stats if sees(STATS) else b""
                part = Part(part.frames + stats, Place(part.place.after, self.stats_number))
            if len(self._parts) < PARTS_KEPT_MAX:
                self._parts[place, sees] = part
        return part

    async def catch_up(self, place: Place, sees: Sees, most: int) -> Part:
        """What follows a place that is further back, from the log itself."""
        floor = self._floor
        try:
            async with self._catching_up:
                found = await self._events.read(self._tenant, after=place.after or None, limit=most)
        except Gap as gap:
            return Part(frame_of_gap(gap.after), Place(gap.after, place.stats))
        if not found:  # Up to the floor there is nothing, and can be nothing any more.
            return Part(b"", Place(floor, place.stats))
        return _part([told_of(event) for event in found], place, sees)


class Feeds:
    """A feed for each tenant that somebody follows."""

    def __init__(self, events: Events, clock: Clock, *, stats: Stats | None = None) -> None:
        self._events = events
        self._clock = clock
        self._stats = stats
        self._feeds: dict[str, Feed] = {}

    def __len__(self) -> int:
        return len(self._feeds)

    @property
    def kept_bytes(self) -> int:
        """The size of the recent events that are kept in memory for followers."""
        return sum(feed.kept_bytes for feed in self._feeds.values())

    def hint(self, tenant: str) -> None:
        """There may be something new of this tenant."""
        if (feed := self._feeds.get(tenant)) is not None:
            feed.hint()

    async def close(self) -> None:
        """Read no more for anybody."""
        while self._feeds:
            await self._feeds.popitem()[1].end()

    async def follow(self, tenant: str, after: str | None, sees: Sees) -> AsyncGenerator[bytes, None]:
        """What is sent to one who follows a tenant from an event on, or from now: frames of what `sees` lets through.

        Raises `InvalidCursor` when `after` is not the id of an event.
        """
        if after is not None:
            await self._events.check_place(tenant, after)
        newest = await self._events.newest(tenant)
        return self._follow(tenant, newest if after is None else after, newest, sees)

    async def _follow(self, tenant: str, after: str, newest: str, sees: Sees) -> AsyncGenerator[bytes, None]:
        """Frames of all events after this one that are seen, as they come, and of statistics; or a comment."""
        feed = self._join(tenant, newest)
        place = Place(after, feed.stats_number)
        sent_at, most = _now(), READ_EVENTS
        try:
            yield OPENING
            while True:
                news = feed.news
                if feed.has(place):
                    part = feed.next(place, sees)
                else:
                    part = await feed.catch_up(place, sees, most)
                    most = min(max(2 * part.events, READ_EVENTS_MIN), READ_EVENTS)  # Of large ones few go together.
                moved, place = part.place != place, part.place
                frames = part.frames
                if not moved and _now() - sent_at >= HEARTBEAT_SECONDS - TICK_SECONDS:
                    frames = HEARTBEAT
                if frames:
                    yield frames
                    sent_at = _now()
                elif not moved:
                    await news.wait()
        finally:
            await self._leave(tenant, feed)

    def _join(self, tenant: str, newest: str) -> Feed:
        feed = self._feeds.get(tenant)
        if feed is None:
            feed = Feed(self._events, tenant, newest, clock=self._clock, stats=self._stats)
            self._feeds[tenant] = feed
        feed.followers += 1
        return feed

    async def _leave(self, tenant: str, feed: Feed) -> None:
        feed.followers -= 1
        if not feed.followers:
            self._feeds.pop(tenant, None)
            await feed.end()


def _part(told: Sequence[Told], place: Place, sees: Sees) -> Part:
    """As much of this as is sent together."""
    frames: list[bytes] = []
    size, after, events = 0, place.after, 0
    for one in told:
        if size >= PART_BYTES_MAX:
            break
        after = one.id
        events += 1
        if sees(one.name):
            frames.append(one.frame)
            size += len(one.frame)
    return Part(b"".join(frames), Place(after, place.stats), events)


def told_of(event: Event) -> Told:
    """An event as it is sent: a line each for its id, its name and the event as JSON."""
    line = _one_line(_encode(event))
    return Told(
        event.id, event.name, b"id: %s\nevent: %s\ndata: %s\n\n" % (event.id.encode(), event.name.encode(), line)
    )


def frame_of_gap(after: str) -> bytes:
    """That events up to this one are missing, and that it goes on from there."""
    return b'id: %s\nevent: gap\ndata: {"after":"%s"}\n\n' % (after.encode(), after.encode())


def frame_of_stats(tenant: str, now: int, summary: object) -> bytes:
    """A tenant's statistics as they are sent: without an id, because they are not in the log."""
    told: dict[str, Any] = {"tenant": tenant, "name": STATS, "at": to_datetime(now), "data": summary}
    return b"event: %s\ndata: %s\n\n" % (STATS.encode(), _one_line(_encode(told)))


def _one_line(text: bytes) -> bytes:
    """JSON text without line breaks: inside a text JSON has none, between its parts they mean nothing."""
    return msgspec.json.format(text, indent=-1) if b"\n" in text or b"\r" in text else text


def _now() -> float:
    return asyncio.get_running_loop().time()
