"""The garbage collector: ends expired uploads, deletes blobs without references, and empties the trash."""

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
ROUND_BATCHES_MAX: Final = 200  # Per step of a round. The next round continues.


class GarbageCollector(Loop):
    """The loop that deletes uploads, blobs and objects that are no longer needed, about every `every_seconds`.

    A blob is deleted when it has had no reference for `grace_seconds`.
    """

    name = "blobs.garbage_collector"

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
        # Blobs and objects that cannot be deleted must not block the others: the next round continues after them.
        self._resume_after_blob: str | None = None
        self._resume_after_object = ""

    async def run_once(self) -> BlobCollectionResult:
        """Run one round. An error of a reference source ends it, and no blob of the current batch is deleted."""
        uploads = await self._sweep_uploads()
        blobs, size = await self._collect_blobs()
        objects = await self._empty_trash()
        self._counters.blobs_collected += blobs
        self._counters.bytes_collected += size
        return BlobCollectionResult(blobs=blobs, bytes=size, uploads=uploads, objects=objects)

    async def preview(self) -> BlobCollectionResult:
        """Report what a round would delete now. Counts at most `BATCH_ROWS` blobs and as many objects."""
        blob_ids = await self._store.run(ListTombstonedBlobs(grace=self.grace_micros, limit=BATCH_ROWS))
        referenced = await self._externally_referenced(blob_ids)
        sizes = [await self._collect_blob(blob_id, dry_run=True) for blob_id in blob_ids if blob_id not in referenced]
        collectable_sizes = [size for size in sizes if size is not None]
        trash = await self._store.run(ListTrash(limit=BATCH_ROWS))
        return BlobCollectionResult(
            blobs=len(collectable_sizes), bytes=sum(collectable_sizes), objects=len(trash), dry_run=True
        )

    async def wait(self) -> None:
        """Wait until the next round is due. The random part keeps several servers from running at once."""
        await asyncio.sleep(self.every_seconds * random.uniform(0.8, 1.0))

    async def _sweep_uploads(self) -> int:
        swept = 0
        for _ in range(ROUND_BATCHES_MAX):
            count = await self._store.run(SweepUploads(limit=BATCH_ROWS))
            swept += count
            if count < BATCH_ROWS:
                break
        return swept

    async def _collect_blobs(self) -> tuple[int, int]:
        blobs = total_size = 0
        for _ in range(ROUND_BATCHES_MAX):
            blob_ids = await self._store.run(
                ListTombstonedBlobs(grace=self.grace_micros, limit=BATCH_ROWS, after=self._resume_after_blob)
            )
            referenced = await self._externally_referenced(blob_ids)
            processed = 0
            for blob_id in blob_ids:
                if blob_id in referenced:
                    self._resume_after_blob = blob_id
                    continue
                size = await self._collect_blob(blob_id)
                processed += 1
                if size is not None:
                    blobs, total_size = blobs + 1, total_size + size
            if len(blob_ids) < BATCH_ROWS:
                self._resume_after_blob = None
                break
            if not processed:
                break
        return blobs, total_size

    async def _collect_blob(self, blob_id: str, *, dry_run: bool = False) -> int | None:
        return await self._store.run(CollectBlob(blob_id=blob_id, grace=self.grace_micros, dry_run=dry_run))

    async def _externally_referenced(self, blob_ids: list[str]) -> set[str]:
        referenced: set[str] = set()
        for source in self._reference_sources:
            referenced |= await source.referenced(blob_ids)
        return referenced

    async def _empty_trash(self) -> int:
        """Delete the objects in the trash and return their number. A failed deletion does not stop the others."""
        deleted = 0
        for _ in range(ROUND_BATCHES_MAX):
            trash = await self._store.run(ListTrash(limit=BATCH_ROWS, after=self._resume_after_object))
            deleted_keys: list[str] = []
            for trashed in trash:
                self._resume_after_object = trashed.storage_key
                try:
                    await self._objects.delete(trashed)
                    deleted_keys.append(trashed.storage_key)
                except (IngotError, OSError) as error:
                    report("object_not_deleted", error, storage_key=trashed.storage_key)
            if deleted_keys:
                await self._store.run(ForgetTrash(storage_keys=deleted_keys, store_id=self._objects.store_id))
            deleted += len(deleted_keys)
            if len(trash) < BATCH_ROWS:
                self._resume_after_object = ""
                break
            if not deleted_keys:
                break
        return deleted
