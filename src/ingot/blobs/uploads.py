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
from ingot.blobs.counters import BlobCounters
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
from ingot.blobs.hashing import inline_content
from ingot.blobs.incoming import UPLOAD_LIFETIME_MICROS, BoundedWriter, IncomingBlob, JobFileTarget, check_announced
from ingot.blobs.model import Content, FinishedUpload, StoredUpload, TrashedObject, Upload, UploadState
from ingot.blobs.ports import (
    BeginUpload,
    EndUpload,
    FindBlob,
    GetKey,
    GetUpload,
    ObjectPart,
    ObjectStore,
    ObjectWriter,
    RecordUploadProgress,
    SignedPart,
    SigningStore,
    TakeOverUpload,
    TransferPlan,
)
from ingot.blobs.service import BLOB_BYTES_MAX, check_database_space
from ingot.blobs.upload_writer import UploadWriter
from ingot.blobs.verification import REJECTIONS, Verifier
from ingot.kernel.commands import Store
from ingot.kernel.errors import IngotError, InvalidInput, StoreError
from ingot.kernel.ids import is_id
from ingot.kernel.logs import report

SYNC_VERIFY_BYTES_MAX: Final = 64 * 1024 * 1024  # More than this is read back behind the back of who completes it.
FIRST_WRITER_EPOCH: Final = 2  # The epoch of who takes an upload first.


class PreparedUpload(msgspec.Struct, frozen=True, kw_only=True):
    """An upload that can be begun, where its bytes will go, and the blob when that is here already, or came with it."""

    command: BeginUpload
    plan: TransferPlan | None = None
    content: Content | None = None


class UploadWithPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An upload, and where a client sends its bytes by itself; `None`: to us."""

    upload: Upload
    plan: TransferPlan | None = None


class Uploads:
    """The uploads of all tenants. Whoever comes last with one writes it."""

    def __init__(
        self,
        store: Store,
        objects: ObjectStore,
        signing: SigningStore | None = None,
        *,
        counters: BlobCounters | None = None,
        bytes_max: int = BLOB_BYTES_MAX,
    ) -> None:
        self._store = store
        self._objects = objects
        self._signing = signing
        self.counters = counters or BlobCounters()
        self.bytes_max = bytes_max
        self._writers: dict[str, UploadWriter] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.verifier = Verifier(store, objects, signing, self.counters)

    # -- beginning ------------------------------------------------------------------------------------------

    async def begin(
        self,
        arrival: IncomingBlob,
        *,
        key: str | None = None,
        if_match: str | None = None,
        file: JobFileTarget | None = None,
        data: bytes | None = None,
    ) -> UploadWithPlan:
        """Begin an upload, of a size that is known.

        One whose BLAKE3 the tenant holds already is done at once, and so is one that comes with all of its `data`,
        which is small. Raises what `BeginUpload` does.
        """
        with self.counters.count_operation("upload"):
            prepared = await self.prepare(arrival, key=key, if_match=if_match, file=file, data=data)
            try:
                begun = await self._store.run(prepared.command)
            except BaseException:
                await asyncio.shield(self.discard_prepared(prepared))
                raise
            return await self._with_plan(begun, prepared)

    async def prepare(
        self,
        arrival: IncomingBlob,
        *,
        id: str | None = None,
        key: str | None = None,
        if_match: str | None = None,
        file: JobFileTarget | None = None,
        data: bytes | None = None,
    ) -> PreparedUpload:
        """An upload of a size that is known, to be begun by somebody else, as with the job that it is for.

        What was prepared and is not begun is to be forgotten.
        """
        told = arrival.checked(self.bytes_max)
        came = None if data is None else await self._content_from_data(told, data)
        if came is not None:
            told = msgspec.structs.replace(told, size=came.size, blob_id=came.id, sha256=came.sha256)
        if (size := told.size) is None:
            raise InvalidInput("the size is missing", hint="Say how many bytes will come.")
        name = None if key is None else checks.key(key)
        held = await self._find_existing(told)
        # Until what came with a job is stored, others who ask for the same may send it too.
        joined = came is not None and file is not None and file.fence is None
        known = came or held
        storage_key = self._objects.new_storage_key() if held is None and (came is None or joined) else None
        plan = None
        if storage_key is not None and came is None and self._signing is not None:
            plan = await self._signing.plan(storage_key, size=size, sha256=told.sha256)
        multipart = None if plan is None else plan.multipart
        command = told.begin_command(
            id=id,
            key=name,
            if_match=if_match,
            file=file,
            storage_key=storage_key,
            store_id=self._objects.store_id,
            multipart=multipart,
        )
        return PreparedUpload(command=command, plan=plan, content=known)

    async def continue_prepared(self, prepared: PreparedUpload) -> UploadWithPlan:
        """An upload that somebody else has begun as it was prepared. Raises `UploadNotFound`."""
        return await self._with_plan(await self._get_stored(prepared.command.tenant, prepared.command.id), prepared)

    async def get_with_plan(self, tenant: str, id: str) -> UploadWithPlan:
        """An upload that was begun before, and where its bytes go. Raises `UploadNotFound`."""
        found = await self._get_stored(tenant, id)
        upload, signing = found.upload, self._signing
        if signing is None or found.storage_key is None or upload.state is not UploadState.OPEN:
            return UploadWithPlan(upload=upload)
        plan = await signing.renew_plan(found.storage_key, found.multipart, size=upload.size or 0, sha256=upload.sha256)
        return UploadWithPlan(upload=upload, plan=plan)

    async def resume_or_finish(
        self, tenant: str, id: str, here: Mapping[str, Content] = MappingProxyType({})
    ) -> UploadWithPlan:
        """An upload that somebody asks for once more, and where its bytes go.

        It is done when the tenant has its blob by now, or that is one of those that are `here`, by id. Raises
        `UploadNotFound`.
        """
        found = await self._get_stored(tenant, id)
        if found.upload.state is UploadState.OPEN:
            if (known := await self._find_matching(found, here)) is not None:
                await self._stop_writer(id)
                with suppress(BlobNotFound, UploadEnded):  # Somebody has just taken it away, or ended the upload.
                    return UploadWithPlan(upload=(await self.verifier.finish(found, known)).upload)
            if found.storage_key is None:  # The blob was here when it began, and nobody can send it.
                await self._store.run(EndUpload(tenant=tenant, id=id))
        return await self.get_with_plan(tenant, id)

    async def discard_prepared(self, prepared: PreparedUpload) -> None:
        """Nothing comes of what was prepared: a bucket keeps no parts for it."""
        if prepared.command.multipart is not None and prepared.command.storage_key is not None:
            trash = TrashedObject(storage_key=prepared.command.storage_key, multipart=prepared.command.multipart)
            try:
                await self._objects.delete(trash)
            except (IngotError, OSError) as error:
                report("object_not_deleted", error, storage_key=trash.storage_key)

    async def _with_plan(self, begun: StoredUpload, prepared: PreparedUpload) -> UploadWithPlan:
        self.counters.uploads_begun += 1
        if prepared.content is not None and begun.upload.state is UploadState.OPEN:
            return await self._finish_with_existing(begun, prepared.content)
        return UploadWithPlan(upload=begun.upload, plan=prepared.plan)

    async def _finish_with_existing(self, begun: StoredUpload, known: Content) -> UploadWithPlan:
        """The blob is here: nothing need come. Raises `BlobNotFound` when it was taken away at this moment.

        The input of a job stays open when the store cannot take it now: who asks for the job again brings it again.
        """
        try:
            return UploadWithPlan(upload=(await self.verifier.finish(begun, known)).upload)
        except BaseException as error:
            if isinstance(error, StoreError | asyncio.CancelledError) and begun.storage_key is not None:
                raise
            await asyncio.shield(self._store.run(EndUpload(tenant=begun.tenant, id=begun.upload.id)))
            raise

    async def _find_existing(self, told: IncomingBlob) -> Content | None:
        """The blob, when this tenant has it and need not send it again."""
        if told.blob_id is None:
            return None
        found = await self._store.run(FindBlob(tenant=told.tenant, blob_id=told.blob_id))
        if found is None or found[0].damaged:
            return None
        check_announced(found[0], size=told.size, blob_id=told.blob_id, sha256=told.sha256)
        return msgspec.structs.replace(found[0], storage_key=None, inline=None)

    async def _find_matching(self, begun: StoredUpload, here: Mapping[str, Content]) -> Content | None:
        """The blob that an upload announces, when this tenant or who asks has it and it is what was said of it."""
        upload = begun.upload
        told = IncomingBlob(
            tenant=begun.tenant, owner=upload.owner, size=upload.size, blob_id=upload.blob_id, sha256=upload.sha256
        )
        with suppress(WrongLength, WrongDigest):
            if (known := await self._find_existing(told) or here.get(upload.blob_id or "")) is not None:
                check_announced(known, size=upload.size, blob_id=upload.blob_id, sha256=upload.sha256)
            return known
        return None

    async def _content_from_data(self, told: IncomingBlob, data: bytes) -> Content:
        """A small blob whose bytes came with its announcement. Raises `WrongLength`, `WrongDigest`, `StorageFull`."""
        await check_database_space(self._store, self._objects, len(data))
        content = inline_content(data)
        check_announced(content, size=told.size, blob_id=told.blob_id, sha256=told.sha256)
        self.counters.bytes_in += len(data)
        return content

    # -- bytes that come to us ------------------------------------------------------------------------------

    async def receive(self, tenant: str, id: str, offset: int, parts: AsyncIterator[bytes]) -> Upload:
        """Take in the bytes from `offset` on, and answer how far the upload is. Whoever wrote before is fenced out.

        Raises `UploadNotFound`, `UploadEnded`, `UploadOffsetWrong`, `WrongLength`, `StorageFull`, and `UploadTaken`
        when somebody else goes on with it. What was received by then stays.
        """
        with self.counters.count_operation("receive"):
            async with self._lock_for(id):
                begun = await self._begin_epoch(tenant, id)
                receiving = self._writers[id] = UploadWriter(self._write_parts(begun, offset, parts))
            try:
                return await receiving.run()
            finally:
                del self._writers[id]
                receiving.ended.set()

    async def take_over(self, tenant: str, id: str) -> Upload:
        """How far the upload is, for one who goes on with it: whoever wrote before is fenced out."""
        with self.counters.count_operation("resume"):
            async with self._lock_for(id):
                return (await self._begin_epoch(tenant, id)).upload

    def _lock_for(self, id: str) -> asyncio.Lock:
        """Held by the one who takes an upload over."""
        return self._locks.setdefault(id, asyncio.Lock())

    async def _begin_epoch(self, tenant: str, id: str) -> StoredUpload:
        """Take the upload over. What the writer before has is safe, and told, by then."""
        await self._get_stored(tenant, id)
        await self._stop_writer(id)
        return await self._store.run(TakeOverUpload(tenant=tenant, id=id))

    async def _stop_writer(self, id: str) -> None:
        if (before := self._writers.get(id)) is not None:
            before.stop()
            await before.ended.wait()

    async def _write_parts(self, begun: StoredUpload, offset: int, parts: AsyncIterator[bytes]) -> Upload:
        assert begun.storage_key is not None, "what is open has a place"
        size, received = begun.upload.size, begun.upload.received
        if offset != received:
            raise UploadOffsetWrong(f"the upload goes on at {received}, not at {offset}", offset=received)
        if size == received > 0:
            return begun.upload
        if begun.epoch == FIRST_WRITER_EPOCH:
            writer = await self._objects.write(begun.storage_key, size=size)
        else:
            writer = await self._objects.resume(begun.storage_key, offset=received)
        intake = BoundedWriter(self._store, begun, writer, bytes_max=self.bytes_max)
        try:
            await intake.write_all(parts)
        except BaseException:
            with suppress(StoreError):  # What went wrong first is told, and the offset tells what was kept.
                await asyncio.shield(self._save_progress(begun, writer))
            raise
        noted = await asyncio.shield(self._save_progress(begun, writer))
        self.counters.bytes_in += noted.upload.received - received
        return noted.upload

    async def _save_progress(self, begun: StoredUpload, writer: ObjectWriter) -> StoredUpload:
        """Make safe what has come, and tell it. The last byte makes the object."""
        if writer.offset == begun.upload.size:
            await writer.finish()
        else:
            await writer.sync()
            await writer.abort()
        return await self._store.run(
            RecordUploadProgress(
                tenant=begun.tenant,
                id=begun.upload.id,
                epoch=begun.epoch,
                lifetime=UPLOAD_LIFETIME_MICROS,
                received=writer.offset,
            )
        )

    # -- bytes that go to the object store straight ---------------------------------------------------------

    async def sign_parts(self, tenant: str, id: str, parts: Sequence[ObjectPart]) -> list[SignedPart]:
        """Addresses for parts of an upload. Raises `UploadNotFound`, `UploadEnded` or `InvalidInput`."""
        with self.counters.count_operation("sign"):
            found = await self._get_open(tenant, id)
            if self._signing is None or found.multipart is None or found.storage_key is None:
                raise InvalidInput("this upload has no parts", hint="Send its bytes to the address that it was given.")
            size = found.upload.size or 0
            plan = await self._signing.renew_plan(found.storage_key, found.multipart, size=size, sha256=None)
            _check_part_sizes(parts, size, plan.part_bytes or size)
            return await self._signing.sign_parts(found.storage_key, found.multipart, parts)

    async def list_parts(self, tenant: str, id: str) -> list[ObjectPart]:
        """The parts of an upload that are there, where it is open and has any."""
        found = await self._get_stored(tenant, id)
        is_open = found.upload.state is UploadState.OPEN
        if self._signing is None or not is_open or found.multipart is None or found.storage_key is None:
            return []
        return await self._signing.list_parts(found.storage_key, found.multipart)

    # -- the end --------------------------------------------------------------------------------------------

    async def get(self, tenant: str, id: str) -> Upload:
        """How an upload stands. Raises `UploadNotFound`."""
        return (await self._get_stored(tenant, id)).upload

    async def complete(
        self, tenant: str, id: str, *, blob_id: str | None = None, sha256: str | None = None
    ) -> FinishedUpload:
        """All bytes are sent: read them back, and have the blob be there when they are what was announced.

        A large one is read afterwards: then the answer is an upload that is `verifying`. Done again, it answers how it
        ended. Raises `UploadIncomplete`, `WrongDigest`, `WrongLength`, and what `FinishUpload` does.
        """
        with self.counters.count_operation("complete"):
            found = await self._get_stored(tenant, id)
            if found.upload.state is not UploadState.OPEN:
                return await self._result_of(found)
            try:
                found = await self._require_complete(found, blob_id, sha256)
                return await (
                    self.verifier.verify(found) if found.upload.state is UploadState.OPEN else self._result_of(found)
                )
            except (UploadEnded, UploadIncomplete, BlobDamaged):  # Who completes it at the same time may be done.
                found = await self._get_stored(tenant, id)
                if found.upload.state is UploadState.OPEN:
                    raise
                return await self._result_of(found)

    async def _result_of(self, found: StoredUpload) -> FinishedUpload:
        """How an upload ended, or that it is being verified."""
        match found.upload.state:
            case UploadState.DONE:
                return await self._done_result(found)
            case UploadState.FAILED:
                if found.upload.key is not None and found.upload.error == KeyExists.code:
                    raise KeyExists.for_key(found.upload.key)
                raise REJECTIONS.get(found.upload.error or "", UploadEnded)()
        self.verifier.verify_in_background(found)
        return FinishedUpload(upload=found.upload)

    async def get_for_attempt(self, tenant: str, id: str, *, job_id: str, fence: int) -> Upload:
        """The upload, of a file that this very attempt sends. Raises `UploadNotFound`."""
        found = await self._get_stored(tenant, id)
        if (found.upload.job_id, found.fence) != (job_id, fence):
            raise UploadNotFound(f"there is no upload {id[:64]!r} of this attempt")
        return found.upload

    async def cancel(self, tenant: str, id: str) -> None:
        """End an upload that nobody goes on with. One that is done stays."""
        with self.counters.count_operation("give_up"):
            await self._get_stored(tenant, id)
            await self._stop_writer(id)
            await self._store.run(EndUpload(tenant=tenant, id=id))

    async def _require_complete(self, found: StoredUpload, blob_id: str | None, sha256: str | None) -> StoredUpload:
        """The upload with its object whole, and with what was announced last. Raises `UploadIncomplete`."""
        size, here = found.upload.size, found.upload.received
        if self._signing is not None:
            here = await self._bytes_in_bucket(self._signing, found)
        if size is None or here < size:
            raise UploadIncomplete(f"{here} of {size} bytes are here")
        for announced, known in ((blob_id, found.upload.blob_id), (sha256, found.upload.sha256)):
            if announced is not None and known not in (None, announced):
                raise WrongDigest(f"{announced[:64]} is announced now, and {known} was before")
        return await self._store.run(
            RecordUploadProgress(
                tenant=found.tenant,
                id=found.upload.id,
                epoch=found.epoch,
                lifetime=UPLOAD_LIFETIME_MICROS,
                blob_id=None if blob_id is None else checks.digest(blob_id, name="BLAKE3"),
                sha256=None if sha256 is None else checks.digest(sha256, name="SHA-256"),
                verifying=size > SYNC_VERIFY_BYTES_MAX,
            )
        )

    async def _bytes_in_bucket(self, signing: SigningStore, found: StoredUpload) -> int:
        """How many bytes a client has put there; of parts that are all there it is made now."""
        assert found.storage_key is not None, "what is open has a place"
        if found.multipart is not None:
            parts = await signing.list_parts(found.storage_key, found.multipart)
            if parts and (here := sum(part.size for part in parts)) < (found.upload.size or 0):
                return here
            await signing.join_parts(found.storage_key, found.multipart, parts)
        size = await signing.object_size(found.storage_key)
        if size is None:
            raise UploadIncomplete
        return size

    async def _done_result(self, found: StoredUpload) -> FinishedUpload:
        key = (
            None
            if found.upload.key is None
            else await self._store.run(GetKey(tenant=found.tenant, key=found.upload.key))
        )
        ours = key is not None and key.blob_id == found.upload.blob_id
        return FinishedUpload(upload=found.upload, key=key if ours else None)

    async def _get_stored(self, tenant: str, id: str) -> StoredUpload:
        found = await self._store.run(GetUpload(tenant=tenant, id=_check_upload_id(id)))
        if found is None:
            raise UploadNotFound(f"there is no upload {id[:64]!r}")
        return found

    async def _get_open(self, tenant: str, id: str) -> StoredUpload:
        found = await self._get_stored(tenant, id)
        if found.upload.state is not UploadState.OPEN:
            raise UploadEnded(f"the upload is {found.upload.state}")
        return found


def _check_part_sizes(parts: Sequence[ObjectPart], size: int, part_bytes: int) -> None:
    """Raise `InvalidInput` unless parts are as large as planned: an upload gets what was set aside for it."""
    for part in parts:
        planned = min(part_bytes, size - (part.number - 1) * part_bytes)
        if part.size != planned:
            raise InvalidInput(
                f"part {part.number} has {part.size} bytes; {max(0, planned)} are planned",
                hint=f"Send parts of {part_bytes} bytes, and the rest in the last.",
            )


def _check_upload_id(id: str) -> str:
    if not is_id(id):
        raise UploadNotFound(f"there is no upload {id[:64]!r}")
    return id
