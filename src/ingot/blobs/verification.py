"""What was uploaded is read before it is believed: at once, or in the background when there is much of it."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
import structlog

from ingot.blobs.arrivals import KEEP, expect
from ingot.blobs.errors import (
    BlobNotFound,
    KeyChanged,
    KeyExists,
    UploadEnded,
    UploadNotFound,
    WrongDigest,
    WrongLength,
)
from ingot.blobs.hashing import rehash
from ingot.blobs.model import INLINE_BYTES_MAX, Content, Finished, OpenUpload, Trash
from ingot.blobs.ports import EndUpload, FinishUpload, ListVerifying, NoteUpload, ObjectStore, SigningStore
from ingot.blobs.tally import Tally
from ingot.kernel.clock import MICROS, Clock, to_micros
from ingot.kernel.commands import Store
from ingot.kernel.errors import IngotError, StoreError
from ingot.kernel.logs import report
from ingot.kernel.loops import Loop

LOOK_SECONDS: Final = 30.0
RENEW_SECONDS: Final = 30.0
LOST: Final = 120 * MICROS  # A verification without news for so long is somebody else's who is gone.
VERIFIED_AT_ONCE: Final = 2
WRONG: Final = {error.code: error for error in (WrongDigest, WrongLength, KeyExists, KeyChanged)}
log = structlog.get_logger("ingot.blobs")


class Verifier:
    """Reads back what was uploaded, and ends the upload."""

    def __init__(self, store: Store, objects: ObjectStore, signing: SigningStore | None, tally: Tally) -> None:
        self._store = store
        self._objects = objects
        self._signing = signing
        self._tally = tally
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(VERIFIED_AT_ONCE)

    async def verify(self, found: OpenUpload) -> Finished:
        """Read the bytes back. They are a blob now, or the upload has failed."""
        upload, place = found.upload, await self._sealed(found)
        try:
            if self._signing is not None and await self._signing.size_of(place) != upload.size:
                raise WrongLength(f"there are not the {upload.size} bytes that were announced")
            content = await rehash(self._objects, place, upload.size or 0)
            expect(content, size=upload.size, blob_id=upload.blob_id, sha256=upload.sha256)
            if content.size <= INLINE_BYTES_MAX:
                parts = self._objects.read(place, 0, content.size)
                data = b"".join([part async for part in parts]) if content.size else b""
                content = msgspec.structs.replace(content, place=None, inline=data)
            return await self.finish(found, content)
        except IngotError as error:
            if isinstance(error, WrongDigest | WrongLength):
                await self._fail(found, error)
            if place != found.place and not isinstance(error, StoreError):  # It is certain that nothing names the copy.
                await self._objects.delete(Trash(place=place))
            raise

    async def finish(self, found: OpenUpload, content: Content) -> Finished:
        """These are its bytes, or a blob that is here already. Raises what `FinishUpload` does."""
        finished = await self._store.run(
            FinishUpload(tenant=found.tenant, id=found.upload.id, content=content, keep=KEEP)
        )
        self._tally.uploads_completed += 1
        return finished

    async def _fail(self, found: OpenUpload, error: IngotError) -> None:
        await self._store.run(EndUpload(tenant=found.tenant, id=found.upload.id, error=error.code, keep=KEEP))

    async def _sealed(self, found: OpenUpload) -> str:
        """Where the object is that no client can write to: a copy, where the store lets them write twice."""
        assert found.place is not None, "what is verified has a place"
        if self._signing is None or self._signing.conditional or found.multipart is not None:
            return found.place
        return await self._signing.seal(found.place)

    # -- verifying in the background ------------------------------------------------------------------------

    def verify_soon(self, found: OpenUpload) -> None:
        """Verify it in the background, unless that is under way."""
        id = found.upload.id
        if id not in self._tasks:
            task = self._tasks[id] = asyncio.create_task(self._verify_and_renew(found), name=f"verify {id}")
            task.add_done_callback(lambda _: self._tasks.pop(id, None))

    async def _verify_and_renew(self, found: OpenUpload) -> None:
        verifying = asyncio.ensure_future(self._verify_unheard(found))
        try:
            while not (await asyncio.wait([verifying], timeout=RENEW_SECONDS))[0]:
                await self._store.run(
                    NoteUpload(tenant=found.tenant, id=found.upload.id, epoch=found.epoch, keep=KEEP, verifying=True)
                )
            verifying.result()
        except (*WRONG.values(), UploadEnded, UploadNotFound, BlobNotFound) as error:  # Who sent it did wrong.
            log.info("upload_failed", upload=found.upload.id, code=error.code, detail=error.detail)
        except Exception as error:  # The loop comes back to it.
            report("verification_failed", error, upload=found.upload.id)
        finally:
            verifying.cancel()

    async def _verify_unheard(self, found: OpenUpload) -> None:
        """Verify, when it is its turn, for one who does not wait for it.

        What refuses the blob is kept, to be told when it is asked for.
        """
        async with self._slots:
            try:
                await self.verify(found)
            except (KeyExists, KeyChanged) as error:
                await self._fail(found, error)
                raise

    async def look_for_lost(self, now: int) -> int:
        """Go on with verifications of which nothing was heard for a while: who did them is gone."""
        found = [
            one
            for one in await self._store.run(ListVerifying(limit=100))
            if one.upload.id not in self._tasks and now - (to_micros(one.upload.expires_at) - KEEP) > LOST
        ]
        for one in found:
            self.verify_soon(one)
        return len(found)

    async def join(self) -> None:
        """Wait until the verifications in the background have ended."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def close(self) -> None:
        """Stop what goes on in the background. It is taken up again later."""
        for task in self._tasks.values():
            task.cancel()
        await self.join()


class Verification(Loop):
    """Takes up what others left unverified."""

    name = "verification"

    def __init__(self, verifier: Verifier, clock: Clock) -> None:
        super().__init__()
        self._verifier = verifier
        self._clock = clock

    async def run_once(self) -> int:
        """Look once."""
        return await self._verifier.look_for_lost(self._clock.micros())

    async def rest(self) -> None:
        """Wait until the next look is due."""
        await asyncio.sleep(LOOK_SECONDS)
