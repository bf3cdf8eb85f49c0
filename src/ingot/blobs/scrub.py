"""The scrub: reads every blob again, now and then, so that damage is found while there is still a copy elsewhere."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

from ingot.blobs.counters import BlobCounters
from ingot.blobs.errors import BlobDamaged
from ingot.blobs.hashing import Hasher
from ingot.blobs.model import Content
from ingot.blobs.open_blob import OpenBlob
from ingot.blobs.ports import ListBlobsToScrub, ObjectStore, RecordScrub
from ingot.kernel.clock import MICROS, Clock
from ingot.kernel.commands import Store
from ingot.kernel.errors import IngotError
from ingot.kernel.logs import report
from ingot.kernel.loops import Loop

BATCH_BLOBS: Final = 16
SCRUB_INTERVAL_MICROS: Final = 30 * 86_400 * MICROS  # A blob is read again after so long.
PAUSE_SECONDS: Final = 60.0
RETRY_DELAY_MICROS: Final = 3600 * MICROS  # One that could not be read is left alone for so long, while others are due,
UNREADABLE_BLOBS_MAX: Final = 100  # and up to so many are.


class Scrub(Loop):
    """Reads at most `bytes_per_second`, those blobs first that were not read for longest."""

    name = "scrub"

    def __init__(
        self,
        store: Store,
        objects: ObjectStore,
        clock: Clock,
        *,
        bytes_per_second: float,
        counters: BlobCounters | None = None,
    ) -> None:
        super().__init__()
        self._store = store
        self._objects = objects
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._counters = counters or BlobCounters()
        self._more = False
        self._retry_at: dict[str, int] = {}  # Until when each is left alone.

    async def run_once(self) -> int:
        """Read some blobs that are due; how many. One that cannot be read now is due later: nobody knows its bytes."""
        now = self._clock.micros()
        self._retry_at = {id: until for id, until in self._retry_at.items() if until > now}
        found = await self._store.run(
            ListBlobsToScrub(before=now - SCRUB_INTERVAL_MICROS, limit=BATCH_BLOBS + len(self._retry_at))
        )
        due = [content for content in found if content.id not in self._retry_at][:BATCH_BLOBS]
        read = 0
        for content in due:
            try:
                whole = await self._is_undamaged(content)
            except (IngotError, OSError) as error:
                report("blob_not_read", error, blob_id=content.id)
                if len(self._retry_at) < UNREADABLE_BLOBS_MAX:
                    self._retry_at[content.id] = now + RETRY_DELAY_MICROS
                continue
            await self._record(content, whole=whole)
            read += 1
        self._more = len(due) == BATCH_BLOBS and read > 0
        return read

    async def wait(self) -> None:
        """Go on at once while there are more."""
        if not self._more:
            await asyncio.sleep(PAUSE_SECONDS)

    async def scrub_blob(self, content: Content) -> bool:
        """Read one blob, and keep in mind whether it is whole. Raises what the store does, and nothing is kept then."""
        whole = await self._is_undamaged(content)
        await self._record(content, whole=whole)
        return whole

    async def _is_undamaged(self, content: Content) -> bool:
        try:
            return await self._matches_digests(content)
        except BlobDamaged as error:
            report("blob_damaged", error, blob_id=content.id)
            return False

    async def _record(self, content: Content, *, whole: bool) -> None:
        self._counters.blobs_scrubbed += 1
        read = [(content.id, content.storage_key)]
        if whole:
            await self._store.run(RecordScrub(whole=read))
        else:
            self._counters.damage_found += 1
            await self._store.run(RecordScrub(damaged=read))

    async def _matches_digests(self, content: Content) -> bool:
        hasher = Hasher()
        opened = OpenBlob(content, self._objects, lambda _: None, allow_damaged=True)
        async with aclosing(opened.chunks()) as parts:
            async for part in parts:
                await hasher.update(part)
                self._counters.bytes_scrubbed += len(part)
                if self._bytes_per_second:
                    await asyncio.sleep(len(part) / self._bytes_per_second)
        found = hasher.content()
        return (found.id, found.sha256, found.size) == (content.id, content.sha256, content.size)
