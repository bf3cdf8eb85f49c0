"""The scrub: reads every blob again, now and then, so that damage is found while there is still a copy elsewhere."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

from ingot.blobs.errors import BlobDamaged
from ingot.blobs.hashing import Hasher
from ingot.blobs.model import Content
from ingot.blobs.ports import ListToScrub, NoteScrub, ObjectStore
from ingot.blobs.reading import OpenBlob
from ingot.blobs.tally import Tally
from ingot.kernel.clock import MICROS, Clock
from ingot.kernel.commands import Store
from ingot.kernel.errors import IngotError
from ingot.kernel.logs import report
from ingot.kernel.loops import Loop

STEP: Final = 16
AGAIN: Final = 30 * 86_400 * MICROS  # A blob is read again after so long.
REST_SECONDS: Final = 60.0
UNREAD: Final = 3600 * MICROS  # One that could not be read is left alone for so long, while others are due,
UNREAD_MAX: Final = 100  # and up to so many are.


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
        tally: Tally | None = None,
    ) -> None:
        super().__init__()
        self._store = store
        self._objects = objects
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._tally = tally or Tally()
        self._more = False
        self._unread: dict[str, int] = {}  # Until when each is left alone.

    async def run_once(self) -> int:
        """Read some blobs that are due; how many. One that cannot be read now is due later: nobody knows its bytes."""
        now = self._clock.micros()
        self._unread = {id: until for id, until in self._unread.items() if until > now}
        found = await self._store.run(ListToScrub(before=now - AGAIN, limit=STEP + len(self._unread)))
        due = [content for content in found if content.id not in self._unread][:STEP]
        read = 0
        for content in due:
            try:
                whole = await self._read(content)
            except (IngotError, OSError) as error:
                report("blob_not_read", error, blob_id=content.id)
                if len(self._unread) < UNREAD_MAX:
                    self._unread[content.id] = now + UNREAD
                continue
            await self._note(content, whole=whole)
            read += 1
        self._more = len(due) == STEP and read > 0
        return read

    async def rest(self) -> None:
        """Go on at once while there are more."""
        if not self._more:
            await asyncio.sleep(REST_SECONDS)

    async def look_at(self, content: Content) -> bool:
        """Read one blob, and keep in mind whether it is whole. Raises what the store does, and nothing is kept then."""
        whole = await self._read(content)
        await self._note(content, whole=whole)
        return whole

    async def _read(self, content: Content) -> bool:
        try:
            return await self._is_whole(content)
        except BlobDamaged as error:
            report("blob_damaged", error, blob_id=content.id)
            return False

    async def _note(self, content: Content, *, whole: bool) -> None:
        self._tally.blobs_scrubbed += 1
        read = [(content.id, content.place)]
        if whole:
            await self._store.run(NoteScrub(whole=read))
        else:
            self._tally.damage_found += 1
            await self._store.run(NoteScrub(damaged=read))

    async def _is_whole(self, content: Content) -> bool:
        hasher = Hasher()
        opened = OpenBlob(content, self._objects, lambda _: None, damaged=True)
        async with aclosing(opened.parts()) as parts:
            async for part in parts:
                await hasher.update(part)
                self._tally.bytes_scrubbed += len(part)
                if self._bytes_per_second:
                    await asyncio.sleep(len(part) / self._bytes_per_second)
        found = hasher.content()
        return (found.id, found.sha256, found.size) == (content.id, content.sha256, content.size)
