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
READ_EVENTS_MAX: Final = 200
READ_EVENTS_MIN: Final = 8
RECENT_EVENTS_MAX: Final = 2000
RECENT_BYTES_MAX: Final = 8 * 1024 * 1024
CHUNK_BYTES_MAX: Final = 256 * 1024
CHUNKS_CACHED_MAX: Final = 64
CATCH_UP_READS_MAX: Final = 2  # So many followers read the log at once, and leave room for everybody else.
STATS_EVENT: Final = "stats.updated"
OPENING_FRAME: Final = b"retry: 2000\n\n"
HEARTBEAT_FRAME: Final = b": nothing new\n\n"

IsVisible = Callable[[str], bool]
LoadStats = Callable[[str], Awaitable[object]]
_encode = msgspec.json.Encoder().encode


class FeedItem(msgspec.Struct, frozen=True, gc=False):
    """An event as it is sent."""

    id: str
    name: str
    frame: bytes


class FeedPosition(msgspec.Struct, frozen=True, gc=False):
    """How far a follower has come: the last event, and the last statistics."""

    after: str
    stats_version: int


class FeedChunk(msgspec.Struct, frozen=True, gc=False):
    """What is sent together, the place behind it, and the number of events it goes past."""

    frames: bytes
    position: FeedPosition
    event_count: int = 0


class Feed:
    """The newest events of one tenant, all of those behind `_floor`, as long as somebody follows."""

    def __init__(self, events: Events, tenant: str, begin: str, *, clock: Clock, load_stats: LoadStats | None) -> None:
        self._events = events
        self._tenant = tenant
        self._clock = clock
        self._load_stats = load_stats
        self._floor_id = self._newest_id = begin
        self._recent_items: list[FeedItem] = []
        self._recent_ids: list[str] = []
        self.cached_bytes = 0
        self._chunks: dict[tuple[FeedPosition, IsVisible], FeedChunk] = {}
        self.stats_version = 0
        self._stats_frame, self._stats_loaded_at, self._stats_stale = b"", 0.0, False
        self.updated = asyncio.Event()
        self._woken_at = 0.0
        self._poll_requested = asyncio.Event()
        self._catch_up_slots = asyncio.Semaphore(CATCH_UP_READS_MAX)
        self.follower_count = 0
        self._poll_task = asyncio.create_task(self._run(), name=f"events.feed {tenant}")

    def notify(self) -> None:
        """There may be something new."""
        self._poll_requested.set()

    async def close(self) -> None:
        """Read no more."""
        self._poll_task.cancel()
        await asyncio.wait([self._poll_task])

    # -- reading the log ------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Read on and on; what fails is tried again."""
        while True:
            self._poll_requested.clear()
            pause = POLL_SECONDS
            try:
                more = await self._poll()
                pause = 0.0 if more else POLL_SECONDS
            except NotFound:  # The tenant was removed: there is nothing more to read, and who follows it is let go.
                return
            except Exception as error:
                report("feed_failed", error, tenant_id=self._tenant)
                pause = POLL_AFTER_ERROR_SECONDS
            if _now() - self._woken_at >= TICK_SECONDS:
                self._wake_followers()
            await asyncio.sleep(min(pause, GATHER_SECONDS))
            await wait_for(self._poll_requested, pause)

    async def _poll(self) -> bool:
        """Take in what is new, and tell whether there may be more."""
        try:
            found = await self._events.read(self._tenant, after=self._newest_id or None, limit=READ_EVENTS_MAX)
        except Gap as gap:
            self._skip_to(gap.after)
            return True
        if found:
            self._append([feed_item(event) for event in found])
            self._stats_stale = True
        if self._stats_stale and self._load_stats is not None and _now() - self._stats_loaded_at >= STATS_SECONDS:
            await self._refresh_stats(self._load_stats)
        return len(found) == READ_EVENTS_MAX

    def _append(self, told: Sequence[FeedItem]) -> None:
        self._recent_items += told
        self._recent_ids += [one.id for one in told]
        self.cached_bytes += sum(len(one.frame) for one in told)
        self._newest_id = told[-1].id
        gone = max(0, len(self._recent_items) - RECENT_EVENTS_MAX)
        self.cached_bytes -= sum(len(one.frame) for one in self._recent_items[:gone])
        while self.cached_bytes > RECENT_BYTES_MAX:
            self.cached_bytes -= len(self._recent_items[gone].frame)
            gone += 1
        if gone:
            self._floor_id = self._recent_ids[gone - 1]
            del self._recent_items[:gone], self._recent_ids[:gone]
        self._wake_followers()

    def _skip_to(self, after: str) -> None:
        """What was to come next is not kept any more: those who follow read the log, and are told so there."""
        self._floor_id = self._newest_id = after
        self._recent_items, self._recent_ids, self.cached_bytes = [], [], 0
        self._wake_followers()

    async def _refresh_stats(self, count: LoadStats) -> None:
        self._stats_loaded_at, self._stats_stale = _now(), False
        self._stats_frame = stats_frame(self._tenant, self._clock.micros(), await count(self._tenant))
        self.stats_version += 1
        self._wake_followers()

    def _wake_followers(self) -> None:
        self._chunks.clear()
        self._woken_at = _now()
        self.updated.set()
        self.updated = asyncio.Event()

    # -- following ------------------------------------------------------------------------------------------

    def covers(self, place: FeedPosition) -> bool:
        """Whether all that follows a place is among the newest."""
        return place.after >= self._floor_id

    def next_chunk(self, place: FeedPosition, sees: IsVisible) -> FeedChunk:
        """What follows a place among the newest. Most are at the same place, and are sent the same."""
        part = self._chunks.get((place, sees))
        if part is None:
            recent = self._recent_items[bisect_right(self._recent_ids, place.after) :]
            part = _build_chunk(recent, place, sees)
            if part.position.after >= self._newest_id and self.stats_version > place.stats_version:
                stats = self._stats_frame if sees(STATS_EVENT) else b""
                part = FeedChunk(part.frames + stats, FeedPosition(part.position.after, self.stats_version))
            if len(self._chunks) < CHUNKS_CACHED_MAX:
                self._chunks[place, sees] = part
        return part

    async def catch_up(self, place: FeedPosition, sees: IsVisible, most: int) -> FeedChunk:
        """What follows a place that is further back, from the log itself."""
        floor = self._floor_id
        try:
            async with self._catch_up_slots:
                found = await self._events.read(self._tenant, after=place.after or None, limit=most)
        except Gap as gap:
            return FeedChunk(gap_frame(gap.after), FeedPosition(gap.after, place.stats_version))
        if not found:  # Up to the floor there is nothing, and can be nothing any more.
            return FeedChunk(b"", FeedPosition(floor, place.stats_version))
        return _build_chunk([feed_item(event) for event in found], place, sees)


class Feeds:
    """A feed for each tenant that somebody follows."""

    def __init__(self, events: Events, clock: Clock, *, load_stats: LoadStats | None = None) -> None:
        self._events = events
        self._clock = clock
        self._load_stats = load_stats
        self._feeds: dict[str, Feed] = {}

    def __len__(self) -> int:
        return len(self._feeds)

    @property
    def cached_bytes(self) -> int:
        """The size of the recent events that are kept in memory for followers."""
        return sum(feed.cached_bytes for feed in self._feeds.values())

    def notify(self, tenant: str) -> None:
        """There may be something new of this tenant."""
        if (feed := self._feeds.get(tenant)) is not None:
            feed.notify()

    async def close(self) -> None:
        """Read no more for anybody."""
        while self._feeds:
            await self._feeds.popitem()[1].close()

    async def follow(self, tenant: str, after: str | None, sees: IsVisible) -> AsyncGenerator[bytes, None]:
        """What is sent to one who follows a tenant from an event on, or from now: frames of what `sees` lets through.

        Raises `InvalidCursor` when `after` is not the id of an event.
        """
        if after is not None:
            await self._events.check_position(tenant, after)
        newest = await self._events.newest(tenant)
        return self._stream_chunks(tenant, newest if after is None else after, newest, sees)

    async def _stream_chunks(
        self, tenant: str, after: str, newest: str, sees: IsVisible
    ) -> AsyncGenerator[bytes, None]:
        """Frames of all events after this one that are seen, as they come, and of statistics; or a comment."""
        feed = self._subscribe(tenant, newest)
        place = FeedPosition(after, feed.stats_version)
        sent_at, most = _now(), READ_EVENTS_MAX
        try:
            yield OPENING_FRAME
            while True:
                news = feed.updated
                if feed.covers(place):
                    part = feed.next_chunk(place, sees)
                else:
                    part = await feed.catch_up(place, sees, most)
                    most = min(
                        max(2 * part.event_count, READ_EVENTS_MIN), READ_EVENTS_MAX
                    )  # Of large ones few go together.
                moved, place = part.position != place, part.position
                frames = part.frames
                if not moved and _now() - sent_at >= HEARTBEAT_SECONDS - TICK_SECONDS:
                    frames = HEARTBEAT_FRAME
                if frames:
                    yield frames
                    sent_at = _now()
                elif not moved:
                    await news.wait()
        finally:
            await self._unsubscribe(tenant, feed)

    def _subscribe(self, tenant: str, newest: str) -> Feed:
        feed = self._feeds.get(tenant)
        if feed is None:
            feed = Feed(self._events, tenant, newest, clock=self._clock, load_stats=self._load_stats)
            self._feeds[tenant] = feed
        feed.follower_count += 1
        return feed

    async def _unsubscribe(self, tenant: str, feed: Feed) -> None:
        feed.follower_count -= 1
        if not feed.follower_count:
            self._feeds.pop(tenant, None)
            await feed.close()


def _build_chunk(told: Sequence[FeedItem], place: FeedPosition, sees: IsVisible) -> FeedChunk:
    """As much of this as is sent together."""
    frames: list[bytes] = []
    size, after, events = 0, place.after, 0
    for one in told:
        if size >= CHUNK_BYTES_MAX:
            break
        after = one.id
        events += 1
        if sees(one.name):
            frames.append(one.frame)
            size += len(one.frame)
    return FeedChunk(b"".join(frames), FeedPosition(after, place.stats_version), events)


def feed_item(event: Event) -> FeedItem:
    """An event as it is sent: a line each for its id, its name and the event as JSON."""
    line = _single_line_json(_encode(event))
    return FeedItem(
        event.id, event.name, b"id: %s\nevent: %s\ndata: %s\n\n" % (event.id.encode(), event.name.encode(), line)
    )


def gap_frame(after: str) -> bytes:
    """That events up to this one are missing, and that it goes on from there."""
    return b'id: %s\nevent: gap\ndata: {"after":"%s"}\n\n' % (after.encode(), after.encode())


def stats_frame(tenant: str, now: int, summary: object) -> bytes:
    """A tenant's statistics as they are sent: without an id, because they are not in the log."""
    told: dict[str, Any] = {"tenant": tenant, "name": STATS_EVENT, "at": to_datetime(now), "data": summary}
    return b"event: %s\ndata: %s\n\n" % (STATS_EVENT.encode(), _single_line_json(_encode(told)))


def _single_line_json(text: bytes) -> bytes:
    """JSON text without line breaks: inside a text JSON has none, between its parts they mean nothing."""
    return msgspec.json.format(text, indent=-1) if b"\n" in text or b"\r" in text else text


def _now() -> float:
    return asyncio.get_running_loop().time()
