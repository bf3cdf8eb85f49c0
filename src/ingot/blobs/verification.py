"""What was uploaded is read before it is believed: at once, or in the background when there is much of it."""

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
ABANDONED_AFTER_MICROS: Final = 120 * MICROS  # A verification without news for so long is somebody else's who is gone.
CONCURRENT_VERIFICATIONS_MAX: Final = 2
REJECTIONS: Final = {error.code: error for error in (WrongDigest, WrongLength, KeyExists, KeyChanged)}
log = structlog.get_logger("ingot.blobs")


class Verifier:
    """Reads back what was uploaded, and ends the upload."""

    def __init__(self, store: Store, objects: ObjectStore, signing: SigningStore | None, tally: BlobCounters) -> None:
        self._store = store
        self._objects = objects
        self._signing = signing
        self._counters = tally
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(CONCURRENT_VERIFICATIONS_MAX)

    async def verify(self, found: StoredUpload) -> FinishedUpload:
        """Read the bytes back. They are a blob now, or the upload has failed."""
        upload, storage_key = found.upload, await self._sealed_storage_key(found)
        try:
            if self._signing is not None and await self._signing.object_size(storage_key) != upload.size:
                raise WrongLength(f"there are not the {upload.size} bytes that were announced")
            content = await hash_object(self._objects, storage_key, upload.size or 0)
            check_announced(content, size=upload.size, blob_id=upload.blob_id, sha256=upload.sha256)
            if content.size <= INLINE_BYTES_MAX:
                parts = self._objects.read(storage_key, 0, content.size)
                data = b"".join([part async for part in parts]) if content.size else b""
                content = msgspec.structs.replace(content, storage_key=None, inline=data)
            return await self.finish(found, content)
        except IngotError as error:
            if isinstance(error, WrongDigest | WrongLength):
                await self._fail_upload(found, error)
            if storage_key != found.storage_key and not isinstance(
                error, StoreError
            ):  # It is certain that nothing names the copy.
                await self._objects.delete(TrashedObject(storage_key=storage_key))
            raise

    async def finish(self, found: StoredUpload, content: Content) -> FinishedUpload:
        """These are its bytes, or a blob that is here already. Raises what `FinishUpload` does."""
        finished = await self._store.run(
            FinishUpload(tenant=found.tenant, id=found.upload.id, content=content, lifetime=UPLOAD_LIFETIME_MICROS)
        )
        self._counters.uploads_completed += 1
        return finished

    async def _fail_upload(self, found: StoredUpload, error: IngotError) -> None:
        await self._store.run(
            EndUpload(tenant=found.tenant, id=found.upload.id, error=error.code, lifetime=UPLOAD_LIFETIME_MICROS)
        )

    async def _sealed_storage_key(self, found: StoredUpload) -> str:
        """Where the object is that no client can write to: a copy, where the store lets them write twice."""
        assert found.storage_key is not None, "what is verified has a place"
        if self._signing is None or self._signing.conditional_writes or found.multipart is not None:
            return found.storage_key
        return await self._signing.seal(found.storage_key)

    # -- verifying in the background ------------------------------------------------------------------------

    def verify_in_background(self, found: StoredUpload) -> None:
        """Verify it in the background, unless that is under way."""
        id = found.upload.id
        if id not in self._tasks:
            task = self._tasks[id] = asyncio.create_task(self._verify_and_renew(found), name=f"verify {id}")
            task.add_done_callback(lambda _: self._tasks.pop(id, None))

    async def _verify_and_renew(self, found: StoredUpload) -> None:
        verifying = asyncio.ensure_future(self._verify_in_slot(found))
        try:
            while not (await asyncio.wait([verifying], timeout=RENEW_SECONDS))[0]:
                await self._store.run(
                    RecordUploadProgress(
                        tenant=found.tenant,
                        id=found.upload.id,
                        epoch=found.epoch,
                        lifetime=UPLOAD_LIFETIME_MICROS,
                        verifying=True,
                    )
                )
            verifying.result()
        except (*REJECTIONS.values(), UploadEnded, UploadNotFound, BlobNotFound) as error:  # Who sent it did wrong.
            log.info("upload_failed", upload=found.upload.id, code=error.code, detail=error.detail)
        except Exception as error:  # The loop comes back to it.
            report("verification_failed", error, upload=found.upload.id)
        finally:
            verifying.cancel()

    async def _verify_in_slot(self, found: StoredUpload) -> None:
        """Verify, when it is its turn, for one who does not wait for it.

        What refuses the blob is kept, to be told when it is asked for.
        """
        async with self._slots:
            try:
                await self.verify(found)
            except (KeyExists, KeyChanged) as error:
                await self._fail_upload(found, error)
                raise

    async def resume_abandoned(self, now: int) -> int:
        """Go on with verifications of which nothing was heard for a while: who did them is gone."""
        found = [
            one
            for one in await self._store.run(ListVerifyingUploads(limit=100))
            if one.upload.id not in self._tasks
            and now - (to_micros(one.upload.expires_at) - UPLOAD_LIFETIME_MICROS) > ABANDONED_AFTER_MICROS
        ]
        for one in found:
            self.verify_in_background(one)
        return len(found)

    async def join(self) -> None:
        """Wait until the verifications in the background have ended."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def close(self) -> None:
        """Stop what goes on in the background. It is taken up again later."""
        for task in self._tasks.values():
            task.cancel()
        await self.join()


class VerificationLoop(Loop):
    """Takes up what others left unverified."""

    name = "verification"

    def __init__(self, verifier: Verifier, clock: Clock) -> None:
        super().__init__()
        self._verifier = verifier
        self._clock = clock

    async def run_once(self) -> int:
        """Look once."""
        return await self._verifier.resume_abandoned(self._clock.micros())

    async def wait(self) -> None:
        """Wait until the next look is due."""
        await asyncio.sleep(POLL_SECONDS)
