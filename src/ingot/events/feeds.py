"""Event streams. The log of a tenant is read once for all followers, however many there are.

A feed keeps the newest events of a tenant in memory, encoded as frames of server-sent events. For each follower only
its position is kept. A follower that is behind the feed reads from the log until it has caught up, without gaps or
repeats, because event IDs order both.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from ingot.events.errors import Gap
from ingot.events.model import Event
from ingot.events.permissions import Permission, needed_permission
from ingot.events.service import Events
from ingot.kernel.clock import Clock, to_datetime
from ingot.kernel.errors import NotFound
from ingot.kernel.logs import report
from ingot.kernel.waits import wait_for

POLL_SECONDS: Final = 0.15
GATHER_SECONDS: Final = 0.01  # Events within this time are sent together.
POLL_AFTER_ERROR_SECONDS: Final = 1.0
HEARTBEAT_SECONDS: Final = 15.0  # Longest time without data on a stream.
TICK_SECONDS: Final = 5.0
STATS_SECONDS: Final = 1.0
READ_EVENTS_MAX: Final = 200
READ_EVENTS_MIN: Final = 8
RECENT_EVENTS_MAX: Final = 2000
GROUP_FOLLOWERS_MAX: Final = 32  # Followers that are woken in the same turn of the event loop.
RECENT_BYTES_MAX: Final = 8 * 1024 * 1024
CHUNK_BYTES_MAX: Final = 256 * 1024
CHUNKS_CACHED_MAX: Final = 64
CATCH_UP_READS_MAX: Final = 2  # Followers of a tenant that read the log at once, so that other reads do not wait.
STATS_EVENT: Final = "stats.updated"
OPENING_FRAME: Final = b"retry: 2000\n\n"
HEARTBEAT_FRAME: Final = b": nothing new\n\n"

IsVisible = Callable[[str, Permission | None], bool]  # Takes the name of an event, and what else is needed to see it.
SealId = Callable[[str, str], str]  # Takes a tenant and an ID of its log, and returns the ID that followers get.
LoadStats = Callable[[str], Awaitable[object]]
_encode = msgspec.json.Encoder().encode


class FeedItem(msgspec.Struct, frozen=True, gc=False):
    """An event, encoded as a frame of a stream. `needs` is another permission that followers need to see it."""

    id: str
    name: str
    frame: bytes
    needs: Permission | None = None


class FeedPosition(msgspec.Struct, frozen=True, gc=False):
    """The position of a follower: the last event and the last version of the statistics that it got."""

    after: str
    stats_version: int


class FeedChunk(msgspec.Struct, frozen=True, gc=False):
    """Frames that are sent together, the position after them, and the number of events up to there.

    The number includes events that the follower may not see.
    """

    frames: bytes
    position: FeedPosition
    event_count: int = 0


class Feed:
    """The newest events of one tenant in memory. It exists as long as there are followers.

    The feed holds all events after `_floor_id`.
    """

    def __init__(
        self,
        events: Events,
        tenant: str,
        start_id: str,
        *,
        clock: Clock,
        load_stats: LoadStats | None,
        seal_id: SealId,
    ) -> None:
        self._events = events
        self._tenant = tenant
        self._clock = clock
        self._load_stats = load_stats
        self._seal_id = seal_id
        self._floor_id = self._newest_id = start_id
        self._recent_items: list[FeedItem] = []
        self._recent_ids: list[str] = []
        self.cached_bytes = 0
        self._chunks: dict[tuple[FeedPosition, IsVisible], FeedChunk] = {}
        self.stats_version = 0
        self._stats_frame, self._stats_loaded_at, self._stats_stale = b"", 0.0, False
        # Followers in groups: the event that wakes each group next, and the size of each group.
        self._updated: list[asyncio.Event] = []
        self._group_sizes: list[int] = []
        self._woken_at = 0.0
        self._poll_requested = asyncio.Event()
        self._catch_up_slots = asyncio.Semaphore(CATCH_UP_READS_MAX)
        self.follower_count = 0
        self._poll_task = asyncio.create_task(self._run(), name=f"events.feed {tenant}")

    def notify(self) -> None:
        """Poll the log soon, because there may be new events."""
        self._poll_requested.set()

    async def close(self) -> None:
        """Stop polling the log."""
        self._poll_task.cancel()
        await asyncio.wait([self._poll_task])

    # -- reading the log ------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Poll the log until the feed is closed. An error is retried."""
        while True:
            self._poll_requested.clear()
            pause = POLL_SECONDS
            try:
                has_more = await self._poll()
                pause = 0.0 if has_more else POLL_SECONDS
            except NotFound:  # The tenant was removed, and its streams are closed by other code.
                return
            except Exception as error:
                report("feed_failed", error, tenant_id=self._tenant)
                pause = POLL_AFTER_ERROR_SECONDS
            if _now() - self._woken_at >= TICK_SECONDS:
                self._wake_followers()
            await asyncio.sleep(min(pause, GATHER_SECONDS))
            await wait_for(self._poll_requested, pause)

    async def _poll(self) -> bool:
        """Add new events to the feed. Returns True if there may be more."""
        try:
            events = await self._events.read(self._tenant, after=self._newest_id or None, limit=READ_EVENTS_MAX)
        except Gap as gap:
            self._skip_to(gap.after)
            return True
        if events:
            self._append([self._item_of(event) for event in events])
            self._stats_stale = True
        if self._stats_stale and self._load_stats is not None and _now() - self._stats_loaded_at >= STATS_SECONDS:
            await self._refresh_stats(self._load_stats)
        return len(events) == READ_EVENTS_MAX

    def _append(self, items: Sequence[FeedItem]) -> None:
        self._recent_items += items
        self._recent_ids += [item.id for item in items]
        self.cached_bytes += sum(len(item.frame) for item in items)
        self._newest_id = items[-1].id
        dropped = max(0, len(self._recent_items) - RECENT_EVENTS_MAX)
        self.cached_bytes -= sum(len(item.frame) for item in self._recent_items[:dropped])
        while self.cached_bytes > RECENT_BYTES_MAX:
            self.cached_bytes -= len(self._recent_items[dropped].frame)
            dropped += 1
        if dropped:
            self._floor_id = self._recent_ids[dropped - 1]
            del self._recent_items[:dropped], self._recent_ids[:dropped]
        self._wake_followers()

    def _skip_to(self, after: str) -> None:
        """Drop all events, because the next ones were removed from the log.

        The followers then read from the log, which reports the gap to them.
        """
        self._floor_id = self._newest_id = after
        self._recent_items, self._recent_ids, self.cached_bytes = [], [], 0
        self._wake_followers()

    async def _refresh_stats(self, load_stats: LoadStats) -> None:
        self._stats_loaded_at, self._stats_stale = _now(), False
        self._stats_frame = stats_frame(self._tenant, self._clock.micros(), await load_stats(self._tenant))
        self.stats_version += 1
        self._wake_followers()

    def _wake_followers(self) -> None:
        self._chunks.clear()
        self._woken_at = _now()
        self._wake_group(0)

    def _wake_group(self, group: int) -> None:
        """Wake the followers of a group, and the next group in the next turn of the event loop.

        Requests of other tenants are then served in between, however many followers there are.
        """
        while group < len(self._updated) and not self._group_sizes[group]:
            group += 1
        if group < len(self._updated):
            updated, self._updated[group] = self._updated[group], asyncio.Event()
            updated.set()
            asyncio.get_running_loop().call_soon(self._wake_group, group + 1)

    # -- following ------------------------------------------------------------------------------------------

    def join(self) -> int:
        """Add a follower, and return its group."""
        self.follower_count += 1
        group = next((group for group, size in enumerate(self._group_sizes) if size < GROUP_FOLLOWERS_MAX), None)
        if group is None:
            group = len(self._group_sizes)
            self._group_sizes.append(0)
            self._updated.append(asyncio.Event())
        self._group_sizes[group] += 1
        return group

    def leave(self, group: int) -> None:
        """Remove a follower of a group."""
        self.follower_count -= 1
        self._group_sizes[group] -= 1

    def update_of(self, group: int) -> asyncio.Event:
        """Return the event that is set when there is something new for the followers of a group."""
        return self._updated[group]

    def covers(self, position: FeedPosition) -> bool:
        """Return True if the feed holds all events after a position."""
        return position.after >= self._floor_id

    def next_chunk(self, position: FeedPosition, is_visible: IsVisible) -> FeedChunk:
        """Return the next chunk after a position from memory.

        Chunks are cached, because most followers have the same position and get the same chunk.
        """
        chunk = self._chunks.get((position, is_visible))
        if chunk is None:
            next_items = self._recent_items[bisect_right(self._recent_ids, position.after) :]
            chunk = _build_chunk(next_items, position, is_visible)
            if chunk.position.after >= self._newest_id and self.stats_version > position.stats_version:
                stats = self._stats_frame if is_visible(STATS_EVENT, None) else b""
                chunk = FeedChunk(chunk.frames + stats, FeedPosition(chunk.position.after, self.stats_version))
            if len(self._chunks) < CHUNKS_CACHED_MAX:
                self._chunks[position, is_visible] = chunk
        return chunk

    async def catch_up(self, position: FeedPosition, is_visible: IsVisible, limit: int) -> FeedChunk:
        """Return the next chunk after a position that the feed does not cover. It is read from the log."""
        floor_id = self._floor_id
        try:
            async with self._catch_up_slots:
                events = await self._events.read(self._tenant, after=position.after or None, limit=limit)
        except Gap as gap:
            return FeedChunk(
                gap_frame(self._seal_id(self._tenant, gap.after)), FeedPosition(gap.after, position.stats_version)
            )
        if not events:  # There are no events up to the floor, and none can be added there.
            return FeedChunk(b"", FeedPosition(floor_id, position.stats_version))
        return _build_chunk([self._item_of(event) for event in events], position, is_visible)

    def _item_of(self, event: Event) -> FeedItem:
        return feed_item(event, self._seal_id(self._tenant, event.id))


class Feeds:
    """The feeds of all tenants that have followers."""

    def __init__(
        self,
        events: Events,
        clock: Clock,
        *,
        load_stats: LoadStats | None = None,
        seal_id: SealId = lambda _, event_id: event_id,
    ) -> None:
        self._events = events
        self._clock = clock
        self._load_stats = load_stats
        self._seal_id = seal_id
        self._feeds: dict[str, Feed] = {}

    def __len__(self) -> int:
        return len(self._feeds)

    @property
    def cached_bytes(self) -> int:
        """The total size of the events in memory."""
        return sum(feed.cached_bytes for feed in self._feeds.values())

    def notify(self, tenant: str) -> None:
        """Poll the log of a tenant soon, because there may be new events."""
        if (feed := self._feeds.get(tenant)) is not None:
            feed.notify()

    async def close(self) -> None:
        """Close all feeds."""
        while self._feeds:
            await self._feeds.popitem()[1].close()

    async def follow(self, tenant: str, after: str | None, is_visible: IsVisible) -> AsyncGenerator[bytes, None]:
        """Return a stream of frames with the events of a tenant after an event, or from now on if `after` is `None`.

        `is_visible` decides which events the follower gets. Raises `InvalidCursor` if `after` is not the
        ID of an event.
        """
        if after is not None:
            await self._events.check_position(tenant, after)
        newest_id = await self._events.newest(tenant)
        return self._stream_chunks(tenant, newest_id if after is None else after, newest_id, is_visible)

    async def _stream_chunks(
        self, tenant: str, after: str, newest_id: str, is_visible: IsVisible
    ) -> AsyncGenerator[bytes, None]:
        """Yield frames of visible events and of statistics as they happen, and heartbeat comments in between."""
        feed = self._subscribe(tenant, newest_id)
        group = feed.join()
        position = FeedPosition(after, feed.stats_version)
        sent_at, read_limit = _now(), READ_EVENTS_MAX
        try:
            yield OPENING_FRAME
            while True:
                updated = feed.update_of(group)  # Taken before reading, so that no update is missed.
                if feed.covers(position):
                    chunk = feed.next_chunk(position, is_visible)
                else:
                    chunk = await feed.catch_up(position, is_visible, read_limit)
                    # Only few large events fit into a chunk, so do not read many more than that next time.
                    read_limit = min(max(2 * chunk.event_count, READ_EVENTS_MIN), READ_EVENTS_MAX)
                has_moved, position = chunk.position != position, chunk.position
                frames = chunk.frames
                if not has_moved and _now() - sent_at >= HEARTBEAT_SECONDS - TICK_SECONDS:
                    frames = HEARTBEAT_FRAME
                if frames:
                    yield frames
                    sent_at = _now()
                elif not has_moved:
                    await updated.wait()
        finally:
            feed.leave(group)
            await self._unsubscribe(tenant, feed)

    def _subscribe(self, tenant: str, newest_id: str) -> Feed:
        feed = self._feeds.get(tenant)
        if feed is None:
            feed = Feed(
                self._events,
                tenant,
                newest_id,
                clock=self._clock,
                load_stats=self._load_stats,
                seal_id=self._seal_id,
            )
            self._feeds[tenant] = feed
        return feed

    async def _unsubscribe(self, tenant: str, feed: Feed) -> None:
        if not feed.follower_count:
            self._feeds.pop(tenant, None)
            await feed.close()


def _build_chunk(items: Sequence[FeedItem], position: FeedPosition, is_visible: IsVisible) -> FeedChunk:
    """Join the frames of visible items, up to the maximum size of a chunk."""
    frames: list[bytes] = []
    size, after, event_count = 0, position.after, 0
    for item in items:
        if size >= CHUNK_BYTES_MAX:
            break
        after = item.id
        event_count += 1
        if is_visible(item.name, item.needs):
            frames.append(item.frame)
            size += len(item.frame)
    return FeedChunk(b"".join(frames), FeedPosition(after, position.stats_version), event_count)


def feed_item(event: Event, shown_id: str) -> FeedItem:
    """Encode an event as a frame: one line each for the ID to show, its name, and the event as JSON."""
    data = _single_line_json(_encode(msgspec.structs.replace(event, id=shown_id)))
    frame = b"id: %s\nevent: %s\ndata: %s\n\n" % (shown_id.encode(), event.name.encode(), data)
    return FeedItem(event.id, event.name, frame, needed_permission(event))


def gap_frame(after: str) -> bytes:
    """Encode the notice that events up to this ID are missing, and that the stream continues after it."""
    return b'id: %s\nevent: gap\ndata: {"after":"%s"}\n\n' % (after.encode(), after.encode())


def stats_frame(tenant: str, now: int, summary: object) -> bytes:
    """Encode the statistics of a tenant. The frame has no ID, because statistics are not in the log."""
    event: dict[str, Any] = {"tenant": tenant, "name": STATS_EVENT, "at": to_datetime(now), "data": summary}
    return b"event: %s\ndata: %s\n\n" % (STATS_EVENT.encode(), _single_line_json(_encode(event)))


def _single_line_json(text: bytes) -> bytes:
    """Remove line breaks from JSON text. JSON strings contain none, and between values they have no meaning."""
    return msgspec.json.format(text, indent=-1) if b"\n" in text or b"\r" in text else text


def _now() -> float:
    return asyncio.get_running_loop().time()
