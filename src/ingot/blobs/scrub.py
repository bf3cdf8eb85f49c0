"""The scrub: reads every blob regularly, so that damage is found while the client may still have a copy."""

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
SCRUB_INTERVAL_MICROS: Final = 30 * 86_400 * MICROS  # How long after a read a blob is due again.
PAUSE_SECONDS: Final = 60.0
RETRY_DELAY_MICROS: Final = 3600 * MICROS  # How long a blob that could not be read is skipped.
UNREADABLE_BLOBS_MAX: Final = 100  # How many such blobs are skipped at most; others are tried in each round.


class Scrub(Loop):
    """The loop that reads all blobs again, the longest unread first, with at most `bytes_per_second`."""

    name = "blobs.scrub"

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
        self._retry_at: dict[tuple[str | None, str], int] = {}  # Skipped blobs of tenants, and until when.

    async def run_once(self) -> int:
        """Read a batch of blobs that are due, and return their number.

        A blob that cannot be read now, as when the object store is unreachable, is skipped: it is not damaged.
        """
        now = self._clock.micros()
        self._retry_at = {blob: until for blob, until in self._retry_at.items() if until > now}
        candidates = await self._store.run(
            ListBlobsToScrub(before=now - SCRUB_INTERVAL_MICROS, limit=BATCH_BLOBS + len(self._retry_at))
        )
        due = [content for content in candidates if (content.tenant, content.id) not in self._retry_at][:BATCH_BLOBS]
        read = 0
        for content in due:
            try:
                intact = await self._is_undamaged(content)
            except (IngotError, OSError) as error:
                report("blob_not_read", error, blob_id=content.id)
                if len(self._retry_at) < UNREADABLE_BLOBS_MAX:
                    self._retry_at[content.tenant, content.id] = now + RETRY_DELAY_MICROS
                continue
            await self._record(content, intact=intact)
            read += 1
        self._more = len(due) == BATCH_BLOBS and read > 0
        return read

    async def wait(self) -> None:
        """Wait until the next round. While more blobs are due, it starts at once."""
        if not self._more:
            await asyncio.sleep(PAUSE_SECONDS)

    async def scrub_blob(self, content: Content) -> bool:
        """Read one blob now, and record and return whether it is undamaged.

        Raises the error of a store that cannot read it; nothing is recorded then.
        """
        intact = await self._is_undamaged(content)
        await self._record(content, intact=intact)
        return intact

    async def _is_undamaged(self, content: Content) -> bool:
        try:
            return await self._matches_digests(content)
        except BlobDamaged as error:
            report("blob_damaged", error, blob_id=content.id)
            return False

    async def _record(self, content: Content, *, intact: bool) -> None:
        self._counters.blobs_scrubbed += 1
        blobs = [(content.tenant or "", content.id, content.storage_key)]
        if intact:
            await self._store.run(RecordScrub(intact=blobs, store_id=self._objects.store_id))
        else:
            await self._store.run(RecordScrub(damaged=blobs, store_id=self._objects.store_id))
            self._counters.damage_found += 1

    async def _matches_digests(self, content: Content) -> bool:
        hasher = Hasher()
        blob = OpenBlob(content, self._objects, lambda _: None, allow_damaged=True)
        async with aclosing(blob.chunks()) as parts:
            async for part in parts:
                await hasher.update(part)
                self._counters.bytes_scrubbed += len(part)
                if self._bytes_per_second:
                    await asyncio.sleep(len(part) / self._bytes_per_second)
        actual = hasher.content()
        return (actual.id, actual.sha256, actual.size) == (content.id, content.sha256, content.size)
