"""The collector: takes away what nothing refers to any more, and what uploads left behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from ingot.blobs.model import Collected
from ingot.blobs.ports import CollectBlob, ForgetTrash, Keeper, ListCondemned, ListTrash, ObjectStore, SweepUploads
from ingot.blobs.tally import Tally
from ingot.kernel.clock import MICROS
from ingot.kernel.commands import Store
from ingot.kernel.errors import IngotError
from ingot.kernel.logs import report
from ingot.kernel.loops import Loop

STEP: Final = 500
STEPS_MAX: Final = 200  # Of one round; the next goes on.


class Collector(Loop):
    """Looks every `every_seconds`. What went is taken away `grace_seconds` later."""

    name = "collector"

    def __init__(
        self,
        store: Store,
        objects: ObjectStore,
        *,
        every_seconds: float,
        grace_seconds: float,
        tally: Tally | None = None,
        keepers: Sequence[Keeper] = (),
    ) -> None:
        super().__init__()
        self._store = store
        self._objects = objects
        self.every_seconds = every_seconds
        self.grace = round(grace_seconds * MICROS)
        self._tally = tally or Tally()
        self._keepers = keepers
        self._passed_blob: str | None = None  # A round goes on behind what the one before could not take away.
        self._passed_place = ""

    async def run_once(self) -> Collected:
        """One round. What a keeper raises ends it before a blob is taken away."""
        uploads = await self._sweep()
        blobs, size = await self._collect()
        objects = await self._empty()
        self._tally.blobs_collected += blobs
        self._tally.bytes_collected += size
        return Collected(blobs=blobs, bytes=size, uploads=uploads, objects=objects)

    async def preview(self) -> Collected:
        """What a round would take away now, at most so many as a step looks at."""
        found = await self._store.run(ListCondemned(grace=self.grace, limit=STEP))
        kept = await self._kept(found)
        sizes = [await self._take(blob_id, dry_run=True) for blob_id in found if blob_id not in kept]
        going = [size for size in sizes if size is not None]
        trash = await self._store.run(ListTrash(limit=STEP))
        return Collected(blobs=len(going), bytes=sum(going), objects=len(trash), dry_run=True)

    async def rest(self) -> None:
        """Wait until the next round is due; several servers do not come at once."""
        await asyncio.sleep(self.every_seconds * random.uniform(0.8, 1.0))

    async def _sweep(self) -> int:
        swept = 0
        for _ in range(STEPS_MAX):
            some = await self._store.run(SweepUploads(limit=STEP))
            swept += some
            if some < STEP:
                break
        return swept

    async def _collect(self) -> tuple[int, int]:
        blobs = size = 0
        for _ in range(STEPS_MAX):
            found = await self._store.run(ListCondemned(grace=self.grace, limit=STEP, after=self._passed_blob))
            kept = await self._kept(found)
            taken = 0
            for blob_id in found:
                if blob_id in kept:
                    self._passed_blob = blob_id
                    continue
                went = await self._take(blob_id)
                taken += 1
                if went is not None:
                    blobs, size = blobs + 1, size + went
            if len(found) < STEP:
                self._passed_blob = None
                break
            if not taken:
                break
        return blobs, size

    async def _take(self, blob_id: str, *, dry_run: bool = False) -> int | None:
        return await self._store.run(CollectBlob(blob_id=blob_id, grace=self.grace, dry_run=dry_run))

    async def _kept(self, blob_ids: list[str]) -> set[str]:
        kept: set[str] = set()
        for keeper in self._keepers:
            kept |= await keeper.kept(blob_ids)
        return kept

    async def _empty(self) -> int:
        """Delete the objects that are nobody's. One that cannot be deleted now does not keep the others from it."""
        deleted = 0
        for _ in range(STEPS_MAX):
            trash = await self._store.run(ListTrash(limit=STEP, after=self._passed_place))
            gone: list[str] = []
            for one in trash:
                self._passed_place = one.place
                try:
                    await self._objects.delete(one)
                    gone.append(one.place)
                except (IngotError, OSError) as error:
                    report("object_not_deleted", error, place=one.place)
            if gone:
                await self._store.run(ForgetTrash(places=gone))
            deleted += len(gone)
            if len(trash) < STEP:
                self._passed_place = ""
                break
            if not gone:
                break
        return deleted
