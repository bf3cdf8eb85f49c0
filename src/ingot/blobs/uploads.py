"""Uploads: blobs that come in several steps, go on where they broke off, and are read before they are believed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from ingot.blobs import checks
from ingot.blobs.arrivals import KEEP, Arrival, FileToCome, Intake, expect
from ingot.blobs.errors import (
    BlobDamaged,
    BlobNotFound,
    KeyExists,
    UploadEnded,
    UploadIncomplete,
    UploadNotFound,
    UploadOffsetWrong,
    WrongDigest,
    WrongLength,
)
from ingot.blobs.hashing import content_of
from ingot.blobs.model import Content, Finished, OpenUpload, Trash, Upload, UploadState
from ingot.blobs.ports import (
    BeginUpload,
    EndUpload,
    FindBlob,
    GetKey,
    GetUpload,
    NoteUpload,
    ObjectStore,
    ObjectWriter,
    Part,
    Plan,
    SignedPart,
    SigningStore,
    TakeUpload,
)
from ingot.blobs.receiving import Receiving
from ingot.blobs.service import BLOB_BYTES_MAX, expect_room_inside
from ingot.blobs.tally import Tally
from ingot.blobs.verification import WRONG, Verifier
from ingot.kernel.commands import Store
from ingot.kernel.errors import IngotError, InvalidInput, StoreError
from ingot.kernel.ids import is_id
from ingot.kernel.logs import report

VERIFY_BYTES_MAX: Final = 64 * 1024 * 1024  # More than this is read back behind the back of who completes it.
FIRST_WRITER: Final = 2  # The epoch of who takes an upload first.


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """An upload that can be begun, where its bytes will go, and the blob when that is here already, or came with it."""

    command: BeginUpload
    plan: Plan | None = None
    known: Content | None = None


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """An upload, and where a client sends its bytes by itself; `None`: to us."""

    upload: Upload
    plan: Plan | None = None


class Uploads:
    """The uploads of all tenants. Whoever comes last with one writes it."""

    def __init__(
        self,
        store: Store,
        objects: ObjectStore,
        signing: SigningStore | None = None,
        *,
        tally: Tally | None = None,
        bytes_max: int = BLOB_BYTES_MAX,
    ) -> None:
        self._store = store
        self._objects = objects
        self._signing = signing
        self.tally = tally or Tally()
        self.bytes_max = bytes_max
        self._receiving: dict[str, Receiving] = {}
        self._doors: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.verifier = Verifier(store, objects, signing, self.tally)

    # -- beginning ------------------------------------------------------------------------------------------

    async def begin(
        self,
        arrival: Arrival,
        *,
        key: str | None = None,
        if_match: str | None = None,
        file: FileToCome | None = None,
        data: bytes | None = None,
    ) -> Begun:
        """Begin an upload, of a size that is known.

        One whose BLAKE3 the tenant holds already is done at once, and so is one that comes with all of its `data`,
        which is small. Raises what `BeginUpload` does.
        """
        with self.tally.operation("upload"):
            prepared = await self.prepare(arrival, key=key, if_match=if_match, file=file, data=data)
            try:
                begun = await self._store.run(prepared.command)
            except BaseException:
                await asyncio.shield(self.forget(prepared))
                raise
            return await self._planned(begun, prepared)

    async def prepare(
        self,
        arrival: Arrival,
        *,
        id: str | None = None,
        key: str | None = None,
        if_match: str | None = None,
        file: FileToCome | None = None,
        data: bytes | None = None,
    ) -> Prepared:
        """An upload of a size that is known, to be begun by somebody else, as with the job that it is for.

        What was prepared and is not begun is to be forgotten.
        """
        told = arrival.checked(self.bytes_max)
        came = None if data is None else await self._whole(told, data)
        if came is not None:
            told = msgspec.structs.replace(told, size=came.size, blob_id=came.id, sha256=came.sha256)
        if (size := told.size) is None:
            raise InvalidInput("the size is missing", hint="Say how many bytes will come.")
        name = None if key is None else checks.key(key)
        held = await self._known(told)
        # Until what came with a job is stored, others who ask for the same may send it too.
        joined = came is not None and file is not None and file.fence is None
        known = came or held
        place = self._objects.new_place() if held is None and (came is None or joined) else None
        plan = None
        if place is not None and came is None and self._signing is not None:
            plan = await self._signing.plan(place, size=size, sha256=told.sha256)
        multipart = None if plan is None else plan.multipart
        command = told.upload(
            id=id,
            key=name,
            if_match=if_match,
            file=file,
            place=place,
            store_id=self._objects.store_id,
            multipart=multipart,
        )
        return Prepared(command=command, plan=plan, known=known)

    async def begun(self, prepared: Prepared) -> Begun:
        """An upload that somebody else has begun as it was prepared. Raises `UploadNotFound`."""
        return await self._planned(await self._found(prepared.command.tenant, prepared.command.id), prepared)

    async def again(self, tenant: str, id: str) -> Begun:
        """An upload that was begun before, and where its bytes go. Raises `UploadNotFound`."""
        found = await self._found(tenant, id)
        upload, signing = found.upload, self._signing
        if signing is None or found.place is None or upload.state is not UploadState.OPEN:
            return Begun(upload=upload)
        plan = await signing.plan_again(found.place, found.multipart, size=upload.size or 0, sha256=upload.sha256)
        return Begun(upload=upload, plan=plan)

    async def rejoin(self, tenant: str, id: str, here: Mapping[str, Content] = MappingProxyType({})) -> Begun:
        """An upload that somebody asks for once more, and where its bytes go.

        It is done when the tenant has its blob by now, or that is one of those that are `here`, by id. Raises
        `UploadNotFound`.
        """
        found = await self._found(tenant, id)
        if found.upload.state is UploadState.OPEN:
            if (known := await self._known_by_now(found, here)) is not None:
                await self._stop_receiving(id)
                with suppress(BlobNotFound, UploadEnded):  # Somebody has just taken it away, or ended the upload.
                    return Begun(upload=(await self.verifier.finish(found, known)).upload)
            if found.place is None:  # The blob was here when it began, and nobody can send it.
                await self._store.run(EndUpload(tenant=tenant, id=id))
        return await self.again(tenant, id)

    async def forget(self, prepared: Prepared) -> None:
        """Nothing comes of what was prepared: a bucket keeps no parts for it."""
        if prepared.command.multipart is not None and prepared.command.place is not None:
            trash = Trash(place=prepared.command.place, multipart=prepared.command.multipart)
            try:
                await self._objects.delete(trash)
            except (IngotError, OSError) as error:
                report("object_not_deleted", error, place=trash.place)

    async def _planned(self, begun: OpenUpload, prepared: Prepared) -> Begun:
        self.tally.uploads_begun += 1
        if prepared.known is not None and begun.upload.state is UploadState.OPEN:
            return await self._reuse(begun, prepared.known)
        return Begun(upload=begun.upload, plan=prepared.plan)

    async def _reuse(self, begun: OpenUpload, known: Content) -> Begun:
        """The blob is here: nothing need come. Raises `BlobNotFound` when it was taken away at this moment.

        The input of a job stays open when the store cannot take it now: who asks for the job again brings it again.
        """
        try:
            return Begun(upload=(await self.verifier.finish(begun, known)).upload)
        except BaseException as error:
            if isinstance(error, StoreError | asyncio.CancelledError) and begun.place is not None:
                raise
            await asyncio.shield(self._store.run(EndUpload(tenant=begun.tenant, id=begun.upload.id)))
            raise

    async def _known(self, told: Arrival) -> Content | None:
        """The blob, when this tenant has it and need not send it again."""
        if told.blob_id is None:
            return None
        found = await self._store.run(FindBlob(tenant=told.tenant, blob_id=told.blob_id))
        if found is None or found[0].damaged:
            return None
        expect(found[0], size=told.size, blob_id=told.blob_id, sha256=told.sha256)
        return msgspec.structs.replace(found[0], place=None, inline=None)

    async def _known_by_now(self, begun: OpenUpload, here: Mapping[str, Content]) -> Content | None:
        """The blob that an upload announces, when this tenant or who asks has it and it is what was said of it."""
        upload = begun.upload
        told = Arrival(
            tenant=begun.tenant, owner=upload.owner, size=upload.size, blob_id=upload.blob_id, sha256=upload.sha256
        )
        with suppress(WrongLength, WrongDigest):
            if (known := await self._known(told) or here.get(upload.blob_id or "")) is not None:
                expect(known, size=upload.size, blob_id=upload.blob_id, sha256=upload.sha256)
            return known
        return None

    async def _whole(self, told: Arrival, data: bytes) -> Content:
        """A small blob whose bytes came with its announcement. Raises `WrongLength`, `WrongDigest`, `StorageFull`."""
        await expect_room_inside(self._store, self._objects, len(data))
        content = content_of(data)
        expect(content, size=told.size, blob_id=told.blob_id, sha256=told.sha256)
        self.tally.bytes_in += len(data)
        return content

    # -- bytes that come to us ------------------------------------------------------------------------------

    async def receive(self, tenant: str, id: str, offset: int, parts: AsyncIterator[bytes]) -> Upload:
        """Take in the bytes from `offset` on, and answer how far the upload is. Whoever wrote before is fenced out.

        Raises `UploadNotFound`, `UploadEnded`, `UploadOffsetWrong`, `WrongLength`, `StorageFull`, and `UploadTaken`
        when somebody else goes on with it. What was received by then stays.
        """
        with self.tally.operation("receive"):
            async with self._alone(id):
                begun = await self._taken(tenant, id)
                receiving = self._receiving[id] = Receiving(self._write(begun, offset, parts))
            try:
                return await receiving.run()
            finally:
                del self._receiving[id]
                receiving.ended.set()

    async def offset(self, tenant: str, id: str) -> Upload:
        """How far the upload is, for one who goes on with it: whoever wrote before is fenced out."""
        with self.tally.operation("resume"):
            async with self._alone(id):
                return (await self._taken(tenant, id)).upload

    def _alone(self, id: str) -> asyncio.Lock:
        """Held by the one who takes an upload over."""
        return self._doors.setdefault(id, asyncio.Lock())

    async def _taken(self, tenant: str, id: str) -> OpenUpload:
        """Take the upload over. What the writer before has is safe, and told, by then."""
        await self._found(tenant, id)
        await self._stop_receiving(id)
        return await self._store.run(TakeUpload(tenant=tenant, id=id))

    async def _stop_receiving(self, id: str) -> None:
        if (before := self._receiving.get(id)) is not None:
            before.stop()
            await before.ended.wait()

    async def _write(self, begun: OpenUpload, offset: int, parts: AsyncIterator[bytes]) -> Upload:
        assert begun.place is not None, "what is open has a place"
        size, received = begun.upload.size, begun.upload.received
        if offset != received:
            raise UploadOffsetWrong(f"the upload goes on at {received}, not at {offset}", offset=received)
        if size == received > 0:
            return begun.upload
        if begun.epoch == FIRST_WRITER:
            writer = await self._objects.write(begun.place, size=size)
        else:
            writer = await self._objects.resume(begun.place, offset=received)
        intake = Intake(self._store, begun, writer, bytes_max=self.bytes_max)
        try:
            await intake.take(parts)
        except BaseException:
            with suppress(StoreError):  # What went wrong first is told, and the offset tells what was kept.
                await asyncio.shield(self._settle(begun, writer))
            raise
        noted = await asyncio.shield(self._settle(begun, writer))
        self.tally.bytes_in += noted.upload.received - received
        return noted.upload

    async def _settle(self, begun: OpenUpload, writer: ObjectWriter) -> OpenUpload:
        """Make safe what has come, and tell it. The last byte makes the object."""
        if writer.offset == begun.upload.size:
            await writer.finish()
        else:
            await writer.sync()
            await writer.abort()
        return await self._store.run(
            NoteUpload(tenant=begun.tenant, id=begun.upload.id, epoch=begun.epoch, keep=KEEP, received=writer.offset)
        )

    # -- bytes that go to the object store straight ---------------------------------------------------------

    async def sign_parts(self, tenant: str, id: str, parts: Sequence[Part]) -> list[SignedPart]:
        """Addresses for parts of an upload. Raises `UploadNotFound`, `UploadEnded` or `InvalidInput`."""
        with self.tally.operation("sign"):
            found = await self._open(tenant, id)
            if self._signing is None or found.multipart is None or found.place is None:
                raise InvalidInput("this upload has no parts", hint="Send its bytes to the address that it was given.")
            size = found.upload.size or 0
            plan = await self._signing.plan_again(found.place, found.multipart, size=size, sha256=None)
            _expect_fitting(parts, size, plan.part_bytes or size)
            return await self._signing.sign_parts(found.place, found.multipart, parts)

    async def parts(self, tenant: str, id: str) -> list[Part]:
        """The parts of an upload that are there, where it is open and has any."""
        found = await self._found(tenant, id)
        is_open = found.upload.state is UploadState.OPEN
        if self._signing is None or not is_open or found.multipart is None or found.place is None:
            return []
        return await self._signing.list_parts(found.place, found.multipart)

    # -- the end --------------------------------------------------------------------------------------------

    async def get(self, tenant: str, id: str) -> Upload:
        """How an upload stands. Raises `UploadNotFound`."""
        return (await self._found(tenant, id)).upload

    async def complete(
        self, tenant: str, id: str, *, blob_id: str | None = None, sha256: str | None = None
    ) -> Finished:
        """All bytes are sent: read them back, and have the blob be there when they are what was announced.

        A large one is read afterwards: then the answer is an upload that is `verifying`. Done again, it answers how it
        ended. Raises `UploadIncomplete`, `WrongDigest`, `WrongLength`, and what `FinishUpload` does.
        """
        with self.tally.operation("complete"):
            found = await self._found(tenant, id)
            if found.upload.state is not UploadState.OPEN:
                return await self._ended(found)
            try:
                found = await self._gathered(found, blob_id, sha256)
                return await (
                    self.verifier.verify(found) if found.upload.state is UploadState.OPEN else self._ended(found)
                )
            except (UploadEnded, UploadIncomplete, BlobDamaged):  # Who completes it at the same time may be done.
                found = await self._found(tenant, id)
                if found.upload.state is UploadState.OPEN:
                    raise
                return await self._ended(found)

    async def _ended(self, found: OpenUpload) -> Finished:
        """How an upload ended, or that it is being verified."""
        match found.upload.state:
            case UploadState.DONE:
                return await self._done(found)
            case UploadState.FAILED:
                if found.upload.key is not None and found.upload.error == KeyExists.code:
                    raise KeyExists.under(found.upload.key)
                raise WRONG.get(found.upload.error or "", UploadEnded)()
        self.verifier.verify_soon(found)
        return Finished(upload=found.upload)

    async def of_attempt(self, tenant: str, id: str, *, job_id: str, fence: int) -> Upload:
        """The upload, of a file that this very attempt sends. Raises `UploadNotFound`."""
        found = await self._found(tenant, id)
        if (found.upload.job_id, found.fence) != (job_id, fence):
            raise UploadNotFound(f"there is no upload {id[:64]!r} of this attempt")
        return found.upload

    async def give_up(self, tenant: str, id: str) -> None:
        """End an upload that nobody goes on with. One that is done stays."""
        with self.tally.operation("give_up"):
            await self._found(tenant, id)
            await self._stop_receiving(id)
            await self._store.run(EndUpload(tenant=tenant, id=id))

    async def _gathered(self, found: OpenUpload, blob_id: str | None, sha256: str | None) -> OpenUpload:
        """The upload with its object whole, and with what was announced last. Raises `UploadIncomplete`."""
        size, here = found.upload.size, found.upload.received
        if self._signing is not None:
            here = await self._at_bucket(self._signing, found)
        if size is None or here < size:
            raise UploadIncomplete(f"{here} of {size} bytes are here")
        for announced, known in ((blob_id, found.upload.blob_id), (sha256, found.upload.sha256)):
            if announced is not None and known not in (None, announced):
                raise WrongDigest(f"{announced[:64]} is announced now, and {known} was before")
        return await self._store.run(
            NoteUpload(
                tenant=found.tenant,
                id=found.upload.id,
                epoch=found.epoch,
                keep=KEEP,
                blob_id=None if blob_id is None else checks.digest(blob_id, what="BLAKE3"),
                sha256=None if sha256 is None else checks.digest(sha256, what="SHA-256"),
                verifying=size > VERIFY_BYTES_MAX,
            )
        )

    async def _at_bucket(self, signing: SigningStore, found: OpenUpload) -> int:
        """How many bytes a client has put there; of parts that are all there it is made now."""
        assert found.place is not None, "what is open has a place"
        if found.multipart is not None:
            parts = await signing.list_parts(found.place, found.multipart)
            if parts and (here := sum(part.size for part in parts)) < (found.upload.size or 0):
                return here
            await signing.join_parts(found.place, found.multipart, parts)
        size = await signing.size_of(found.place)
        if size is None:
            raise UploadIncomplete
        return size

    async def _done(self, found: OpenUpload) -> Finished:
        key = (
            None
            if found.upload.key is None
            else await self._store.run(GetKey(tenant=found.tenant, key=found.upload.key))
        )
        ours = key is not None and key.blob_id == found.upload.blob_id
        return Finished(upload=found.upload, key=key if ours else None)

    async def _found(self, tenant: str, id: str) -> OpenUpload:
        found = await self._store.run(GetUpload(tenant=tenant, id=_id(id)))
        if found is None:
            raise UploadNotFound(f"there is no upload {id[:64]!r}")
        return found

    async def _open(self, tenant: str, id: str) -> OpenUpload:
        found = await self._found(tenant, id)
        if found.upload.state is not UploadState.OPEN:
            raise UploadEnded(f"the upload is {found.upload.state}")
        return found


def _expect_fitting(parts: Sequence[Part], size: int, part_bytes: int) -> None:
    """Raise `InvalidInput` unless parts are as large as planned: an upload gets what was set aside for it."""
    for part in parts:
        planned = min(part_bytes, size - (part.number - 1) * part_bytes)
        if part.size != planned:
            raise InvalidInput(
                f"part {part.number} has {part.size} bytes; {max(0, planned)} are planned",
                hint=f"Send parts of {part_bytes} bytes, and the rest in the last.",
            )


def _id(id: str) -> str:
    if not is_id(id):
        raise UploadNotFound(f"there is no upload {id[:64]!r}")
    return id
