"""The collector: takes away what nothing refers to any more, and what uploads left behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from ingot.blobs.counters import BlobCounters
from ingot.blobs.model import BlobCollectionResult
from ingot.blobs.ports import (
    CollectBlob,
    ForgetTrash,
    ListTombstonedBlobs,
    ListTrash,
    ObjectStore,
    ReferenceSource,
    SweepUploads,
)
from ingot.kernel.clock import MICROS
from ingot.kernel.commands import Store
from ingot.kernel.errors import IngotError
from ingot.kernel.logs import report
from ingot.kernel.loops import Loop

BATCH_ROWS: Final = 500
ROUND_BATCHES_MAX: Final = 200  # Of one round; the next goes on.


class GarbageCollector(Loop):
    """Looks every `every_seconds`. What went is taken away `grace_seconds` later."""

    name = "collector"

    def __init__(
        self,
        store: Store,
        objects: ObjectStore,
        *,
        every_seconds: float,
        grace_seconds: float,
        counters: BlobCounters | None = None,
        reference_sources: Sequence[ReferenceSource] = (),
    ) -> None:
        super().__init__()
        self._store = store
        self._objects = objects
        self.every_seconds = every_seconds
        self.grace_micros = round(grace_seconds * MICROS)
        self._counters = counters or BlobCounters()
        self._reference_sources = reference_sources
        self._resume_after_blob: str | None = None  # A round goes on behind what the one before could not take away.
        self._resume_after_object = ""

    async def run_once(self) -> BlobCollectionResult:
        """One round. What a keeper raises ends it before a blob is taken away."""
        uploads = await self._sweep_uploads()
        blobs, size = await self._collect_blobs()
        objects = await self._empty_trash()
        self._counters.blobs_collected += blobs
        self._counters.bytes_collected += size
        return BlobCollectionResult(blobs=blobs, bytes=size, uploads=uploads, objects=objects)

    async def preview(self) -> BlobCollectionResult:
        """What a round would take away now, at most so many as a step looks at."""
        found = await self._store.run(ListTombstonedBlobs(grace=self.grace_micros, limit=BATCH_ROWS))
        kept = await self._externally_referenced(found)
        sizes = [await self._collect_blob(blob_id, dry_run=True) for blob_id in found if blob_id not in kept]
        going = [size for size in sizes if size is not None]
        trash = await self._store.run(ListTrash(limit=BATCH_ROWS))
        return BlobCollectionResult(blobs=len(going), bytes=sum(going), objects=len(trash), dry_run=True)

    async def wait(self) -> None:
        """Wait until the next round is due; several servers do not come at once."""
        await asyncio.sleep(self.every_seconds * random.uniform(0.8, 1.0))

    async def _sweep_uploads(self) -> int:
        swept = 0
        for _ in range(ROUND_BATCHES_MAX):
            some = await self._store.run(SweepUploads(limit=BATCH_ROWS))
            swept += some
            if some < BATCH_ROWS:
                break
        return swept

    async def _collect_blobs(self) -> tuple[int, int]:
        blobs = size = 0
        for _ in range(ROUND_BATCHES_MAX):
            found = await self._store.run(
                ListTombstonedBlobs(grace=self.grace_micros, limit=BATCH_ROWS, after=self._resume_after_blob)
            )
            kept = await self._externally_referenced(found)
            taken = 0
            for blob_id in found:
                if blob_id in kept:
                    self._resume_after_blob = blob_id
                    continue
                went = await self._collect_blob(blob_id)
                taken += 1
                if went is not None:
                    blobs, size = blobs + 1, size + went
            if len(found) < BATCH_ROWS:
                self._resume_after_blob = None
                break
            if not taken:
                break
        return blobs, size

    async def _collect_blob(self, blob_id: str, *, dry_run: bool = False) -> int | None:
        return await self._store.run(CollectBlob(blob_id=blob_id, grace=self.grace_micros, dry_run=dry_run))

    async def _externally_referenced(self, blob_ids: list[str]) -> set[str]:
        kept: set[str] = set()
        for keeper in self._reference_sources:
            kept |= await keeper.referenced(blob_ids)
        return kept

    async def _empty_trash(self) -> int:
        """Delete the objects that are nobody's. One that cannot be deleted now does not keep the others from it."""
        deleted = 0
        for _ in range(ROUND_BATCHES_MAX):
            trash = await self._store.run(ListTrash(limit=BATCH_ROWS, after=self._resume_after_object))
            gone: list[str] = []
            for one in trash:
                self._resume_after_object = one.storage_key
                try:
                    await self._objects.delete(one)
                    gone.append(one.storage_key)
                except (IngotError, OSError) as error:
                    report("object_not_deleted", error, storage_key=one.storage_key)
            if gone:
                await self._store.run(ForgetTrash(storage_keys=gone))
            deleted += len(gone)
            if len(trash) < BATCH_ROWS:
                self._resume_after_object = ""
                break
            if not gone:
                break
        return deleted
