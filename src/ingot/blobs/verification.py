"""Verification of uploads: bytes are read back before they become a blob, large ones in the background."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
import structlog

from ingot.blobs.counters import BlobCounters
from ingot.blobs.errors import (
    BlobNotFound,
    KeyChanged,
    KeyExists,
    UploadEnded,
    UploadNotFound,
    WrongDigest,
    WrongLength,
)
from ingot.blobs.hashing import hash_object
from ingot.blobs.incoming import UPLOAD_LIFETIME_MICROS, check_announced
from ingot.blobs.model import INLINE_BYTES_MAX, Content, FinishedUpload, StoredUpload, TrashedObject
from ingot.blobs.ports import (
    EndUpload,
    FinishUpload,
    ListVerifyingUploads,
    ObjectStore,
    RecordUploadProgress,
    SigningStore,
)
from ingot.kernel.clock import MICROS, Clock, to_micros
from ingot.kernel.commands import Store
from ingot.kernel.errors import IngotError, StoreError
from ingot.kernel.logs import report
from ingot.kernel.loops import Loop

POLL_SECONDS: Final = 30.0
RENEW_SECONDS: Final = 30.0
# A verification that was not renewed for this long belongs to a process that died.
ABANDONED_AFTER_MICROS: Final = 120 * MICROS
CONCURRENT_VERIFICATIONS_MAX: Final = 2
REJECTIONS: Final = {error.code: error for error in (WrongDigest, WrongLength, KeyExists, KeyChanged)}
log = structlog.get_logger("ingot.blobs")


class Verifier:
    """The verification of uploads: reads their bytes back, and finishes the uploads or fails them."""

    def __init__(
        self, store: Store, objects: ObjectStore, signing: SigningStore | None, counters: BlobCounters
    ) -> None:
        self._store = store
        self._objects = objects
        self._signing = signing
        self._counters = counters
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(CONCURRENT_VERIFICATIONS_MAX)

    async def verify(self, stored: StoredUpload) -> FinishedUpload:
        """Read the bytes back, compare them with the announced size and digests, and store the blob.

        Raises `WrongLength` or `WrongDigest`; the upload has failed then. Also raises what `FinishUpload` does.
        """
        upload, storage_key = stored.upload, await self._sealed_storage_key(stored)
        try:
            before = None if self._signing is None else await self._signing.describe(storage_key)
            if self._signing is not None and (before is None or before.size != upload.size):
                raise WrongLength(f"{upload.size} bytes were announced, but the object has another size")
            content = await hash_object(self._objects, storage_key, upload.size or 0)
            check_announced(content, size=upload.size, blob_id=upload.blob_id, sha256=upload.sha256)
            if content.size <= INLINE_BYTES_MAX:
                parts = self._objects.read(storage_key, 0, content.size)
                data = b"".join([part async for part in parts]) if content.size else b""
                content = msgspec.structs.replace(content, storage_key=None, inline=data)
            elif before is not None:
                content = msgspec.structs.replace(content, etag=before.etag)
            return await self.finish(stored, content)
        except IngotError as error:
            if isinstance(error, WrongDigest | WrongLength):
                await self._fail_upload(stored, error)
            # After a `StoreError` the row that names the sealed copy may have been written.
            if storage_key != stored.storage_key and not isinstance(error, StoreError):
                await self._objects.delete(TrashedObject(storage_key=storage_key))
            raise

    async def finish(self, stored: StoredUpload, content: Content) -> FinishedUpload:
        """Store the blob of an upload from verified or already stored content. Raises what `FinishUpload` does."""
        finished = await self._store.run(
            FinishUpload(tenant=stored.tenant, id=stored.upload.id, content=content, lifetime=UPLOAD_LIFETIME_MICROS)
        )
        self._counters.uploads_completed += 1
        return finished

    async def _fail_upload(self, stored: StoredUpload, error: IngotError) -> None:
        await self._store.run(
            EndUpload(tenant=stored.tenant, id=stored.upload.id, error=error.code, lifetime=UPLOAD_LIFETIME_MICROS)
        )

    async def _sealed_storage_key(self, stored: StoredUpload) -> str:
        """Return the storage key of an object that no client can overwrite; copy the object if the store needs that."""
        assert stored.storage_key is not None, "an upload that is verified has a storage key"
        if self._signing is None or self._signing.conditional_writes or stored.multipart is not None:
            return stored.storage_key
        return await self._signing.seal(stored.storage_key)

    # -- verifying in the background ------------------------------------------------------------------------

    def verify_in_background(self, stored: StoredUpload) -> None:
        """Start to verify an upload in the background, unless this process already does."""
        id = stored.upload.id
        if id not in self._tasks:
            task = self._tasks[id] = asyncio.create_task(self._verify_and_renew(stored), name=f"verify {id}")
            task.add_done_callback(lambda _: self._tasks.pop(id, None))

    async def _verify_and_renew(self, stored: StoredUpload) -> None:
        verifying = asyncio.ensure_future(self._verify_in_slot(stored))
        try:
            while not (await asyncio.wait([verifying], timeout=RENEW_SECONDS))[0]:
                await self._store.run(
                    RecordUploadProgress(
                        tenant=stored.tenant,
                        id=stored.upload.id,
                        epoch=stored.epoch,
                        lifetime=UPLOAD_LIFETIME_MICROS,
                        verifying=True,
                    )
                )
            verifying.result()
        except (*REJECTIONS.values(), UploadEnded, UploadNotFound, BlobNotFound) as error:  # Caused by the client.
            log.info("upload_failed", upload=stored.upload.id, code=error.code, detail=error.detail)
        except Exception as error:  # `VerificationLoop` tries again.
            report("verification_failed", error, upload=stored.upload.id)
        finally:
            verifying.cancel()

    async def _verify_in_slot(self, stored: StoredUpload) -> None:
        """Verify an upload when a slot is free.

        No client waits for the result, so an upload whose key was taken meanwhile is failed too: the client sees the
        error when it reads the upload.
        """
        async with self._slots:
            try:
                await self.verify(stored)
            except (KeyExists, KeyChanged) as error:
                await self._fail_upload(stored, error)
                raise

    async def resume_abandoned(self, now: int) -> int:
        """Continue verifications that have not been renewed for a while; return their number.

        `now` is in microseconds since 1970 UTC.
        """
        abandoned = [
            stored
            for stored in await self._store.run(ListVerifyingUploads(limit=100))
            if stored.upload.id not in self._tasks
            and now - (to_micros(stored.upload.expires_at) - UPLOAD_LIFETIME_MICROS) > ABANDONED_AFTER_MICROS
        ]
        for stored in abandoned:
            self.verify_in_background(stored)
        return len(abandoned)

    async def join(self) -> None:
        """Wait until the verifications in the background have ended."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def close(self) -> None:
        """Cancel the verifications in the background. A later process continues them."""
        for task in self._tasks.values():
            task.cancel()
        await self.join()


class VerificationLoop(Loop):
    """The loop that continues verifications of processes that died."""

    name = "blobs.verification"

    def __init__(self, verifier: Verifier, clock: Clock) -> None:
        super().__init__()
        self._verifier = verifier
        self._clock = clock

    async def run_once(self) -> int:
        """Continue abandoned verifications, and return their number."""
        return await self._verifier.resume_abandoned(self._clock.micros())

    async def wait(self) -> None:
        """Wait until the next round is due."""
        await asyncio.sleep(POLL_SECONDS)
