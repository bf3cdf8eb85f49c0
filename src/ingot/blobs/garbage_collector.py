"""The garbage collector: ends expired uploads, deletes blobs without references, and empties the trash."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Final

import msgspec

from ingot.blobs.counters import BlobCounters
from ingot.blobs.model import BlobCollectionResult, TombstonedBlob
from ingot.blobs.ports import (
    CollectBlob,
    ForgetTrash,
    GetBlobMetrics,
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
READ_SECONDS: Final = 60.0  # Time for a reader that has just found a blob to open its object.


class GarbageCollector(Loop):
    """The loop that deletes uploads, blobs and objects that are no longer needed, about every `every_seconds`.

    A blob is deleted when it has had no reference for `grace_seconds`. On demand it is deleted as soon as no reader can
    still need it, after `read_seconds`: the validity of signed URLs to read objects, and some time to open an object.
    """

    name = "blobs.garbage_collector"

    def __init__(
        self,
        store: Store,
        objects: ObjectStore,
        *,
        every_seconds: float,
        grace_seconds: float,
        read_seconds: float = READ_SECONDS,
        counters: BlobCounters | None = None,
        reference_sources: Sequence[ReferenceSource] = (),
    ) -> None:
        super().__init__()
        self._store = store
        self._objects = objects
        self.every_seconds = every_seconds
        self.grace_micros = round(grace_seconds * MICROS)
        self._read_micros = min(self.grace_micros, round(read_seconds * MICROS))
        self._counters = counters or BlobCounters()
        self._reference_sources = reference_sources
        # Blobs and objects that cannot be deleted must not block the others: the next round continues after them.
        self._resume_after_blob: TombstonedBlob | None = None
        self._resume_after_object = ""

    async def run_once(self) -> BlobCollectionResult:
        """Run one round. An error of a reference source ends it, and no blob of the current batch is deleted."""
        return await self.collect()

    async def collect(self, *, now: bool = False) -> BlobCollectionResult:
        """Run one round. With `now`, also delete blobs in their grace period that no reader can still need."""
        uploads = await self._sweep_uploads()
        blobs, size = await self._collect_blobs(self._read_micros if now else self.grace_micros)
        objects = await self._empty_trash()
        self._counters.blobs_collected += blobs
        self._counters.bytes_collected += size
        result = BlobCollectionResult(blobs=blobs, bytes=size, uploads=uploads, objects=objects)
        return await self._with_waiting_bytes(result)

    async def preview(self, *, now: bool = False) -> BlobCollectionResult:
        """Report what a round would delete now. Counts at most `BATCH_ROWS` blobs and as many objects."""
        grace = self._read_micros if now else self.grace_micros
        blobs = await self._store.run(ListTombstonedBlobs(grace=grace, limit=BATCH_ROWS))
        referenced = await self._externally_referenced(blobs)
        sizes = [
            await self._collect_blob(blob, grace, dry_run=True) for blob in blobs if blob.blob_id not in referenced
        ]
        collectable_sizes = [size for size in sizes if size is not None]
        trash = await self._store.run(ListTrash(limit=BATCH_ROWS))
        result = BlobCollectionResult(
            blobs=len(collectable_sizes), bytes=sum(collectable_sizes), objects=len(trash), dry_run=True
        )
        return await self._with_waiting_bytes(result)

    async def _with_waiting_bytes(self, result: BlobCollectionResult) -> BlobCollectionResult:
        metrics = await self._store.run(GetBlobMetrics())
        waiting = max(0, metrics.deleted_bytes - (result.bytes if result.dry_run else 0))
        return msgspec.structs.replace(
            result,
            waiting_bytes=waiting,
            freed_from=metrics.freed_from if waiting else None,
            freed_by=metrics.freed_by if waiting else None,
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

    async def _collect_blobs(self, grace: int) -> tuple[int, int]:
        blobs = total_size = 0
        for _ in range(ROUND_BATCHES_MAX):
            batch = await self._store.run(
                ListTombstonedBlobs(grace=grace, limit=BATCH_ROWS, after=self._resume_after_blob)
            )
            referenced = await self._externally_referenced(batch)
            collected = 0
            for blob in batch:
                size = None if blob.blob_id in referenced else await self._collect_blob(blob, grace)
                if size is None:
                    self._resume_after_blob = blob
                else:
                    collected, total_size = collected + 1, total_size + size
            blobs += collected
            if len(batch) < BATCH_ROWS:
                self._resume_after_blob = None
                break
            if not collected:
                break
        return blobs, total_size

    async def _collect_blob(self, blob: TombstonedBlob, grace: int, *, dry_run: bool = False) -> int | None:
        command = CollectBlob(holder=blob.holder, blob_id=blob.blob_id, grace=grace, dry_run=dry_run)
        return await self._store.run(command)

    async def _externally_referenced(self, blobs: list[TombstonedBlob]) -> set[str]:
        referenced: set[str] = set()
        for source in self._reference_sources:
            referenced |= await source.referenced([blob.blob_id for blob in blobs])
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
