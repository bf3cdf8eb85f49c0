"""Uploads: blobs that arrive in several steps, can be resumed, and are verified before they are stored."""

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
from ingot.blobs.model import (
    FULL_SCOPE,
    BlobScope,
    Content,
    FinishedUpload,
    StoredUpload,
    TrashedObject,
    Upload,
    UploadState,
)
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
from ingot.kernel.clock import MICROS
from ingot.kernel.commands import Store
from ingot.kernel.errors import IngotError, InvalidInput, StoreError
from ingot.kernel.ids import is_id
from ingot.kernel.logs import report

SYNC_VERIFY_BYTES_MAX: Final = 64 * 1024 * 1024  # Larger uploads are verified in the background.
LATE_SECONDS: Final = 300  # How long after the expiry of its URL a PUT may arrive: it began before, or clocks differ.
FIRST_WRITER_EPOCH: Final = 2  # An upload begins with epoch 1; its first writer gets the next one.


class PreparedUpload(msgspec.Struct, frozen=True, kw_only=True):
    """An upload that was not started yet: the command that begins it, and the plan for sending its bytes.

    `content` is set if no bytes need to be sent: the blob is already stored, or its bytes came with the request.
    """

    command: BeginUpload
    plan: TransferPlan | None = None
    content: Content | None = None


class UploadWithPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An upload, and the plan for sending its bytes to the object store. Without a plan they go to the server."""

    upload: Upload
    plan: TransferPlan | None = None


class Uploads:
    """The uploads of all tenants. The last client that continues an upload is its writer."""

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
        self._url_lifetime = 0 if signing is None else (signing.write_url_seconds + LATE_SECONDS) * MICROS
        self._writers: dict[str, UploadWriter] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.verifier = Verifier(store, objects, signing, self.counters)

    # -- beginning ------------------------------------------------------------------------------------------

    async def begin(
        self,
        incoming: IncomingBlob,
        *,
        key: str | None = None,
        if_match: str | None = None,
        file: JobFileTarget | None = None,
        data: bytes | None = None,
    ) -> UploadWithPlan:
        """Begin an upload of known size.

        The upload is done at once if a blob with the announced BLAKE3 has a reference in the scope of the caller, or if
        all bytes of a small blob are given as `data`. Raises what `BeginUpload` does.
        """
        with self.counters.count_operation("upload"):
            prepared = await self.prepare(incoming, key=key, if_match=if_match, file=file, data=data)
            try:
                stored = await self._store.run(prepared.command)
            except BaseException:
                await asyncio.shield(self.discard_prepared(prepared))
                raise
            return await self._with_plan(stored, prepared)

    async def prepare(
        self,
        incoming: IncomingBlob,
        *,
        id: str | None = None,
        key: str | None = None,
        if_match: str | None = None,
        file: JobFileTarget | None = None,
        data: bytes | None = None,
    ) -> PreparedUpload:
        """Prepare an upload of known size that the caller begins, for example together with the job that it is for.

        The caller must discard a prepared upload that it does not begin.
        """
        incoming = incoming.checked(self.bytes_max)
        content = None if data is None else await self._content_from_data(incoming, data)
        if content is not None:
            incoming = msgspec.structs.replace(incoming, size=content.size, blob_id=content.id, sha256=content.sha256)
        if (size := incoming.size) is None:
            raise InvalidInput("the size is missing", hint="Announce the number of bytes.")
        key = None if key is None else checks.key(key)
        existing = await self._find_existing(incoming)
        # The input of a job may be sent by any client that requests the same job, until it is stored.
        can_be_resent = content is not None and file is not None and file.fence is None
        needs_object = existing is None and (content is None or can_be_resent)
        storage_key = self._objects.new_storage_key() if needs_object else None
        plan = None
        if storage_key is not None and content is None and self._signing is not None:
            plan = await self._signing.plan(storage_key, size=size, sha256=incoming.sha256)
        multipart = None if plan is None else plan.multipart
        has_url = self._signing is not None and plan is not None and plan.url is not None
        command = incoming.begin_command(
            id=id,
            key=key,
            if_match=if_match,
            file=file,
            storage_key=storage_key,
            store_id=self._objects.store_id,
            multipart=multipart,
            url_lifetime=self._url_lifetime if has_url else 0,
        )
        return PreparedUpload(command=command, plan=plan, content=content or existing)

    async def continue_prepared(self, prepared: PreparedUpload) -> UploadWithPlan:
        """Continue an upload whose prepared command the caller has run. Raises `UploadNotFound`."""
        return await self._with_plan(await self._get_stored(prepared.command.tenant, prepared.command.id), prepared)

    async def get_with_plan(self, tenant: str, id: str) -> UploadWithPlan:
        """Return an existing upload with a new plan for sending its bytes. Raises `UploadNotFound`."""
        stored = await self._get_stored(tenant, id)
        upload, signing = stored.upload, self._signing
        if signing is None or stored.storage_key is None or upload.state is not UploadState.OPEN:
            return UploadWithPlan(upload=upload)
        plan = await signing.renew_plan(
            stored.storage_key, stored.multipart, size=upload.size or 0, sha256=upload.sha256
        )
        return UploadWithPlan(upload=upload, plan=plan)

    async def resume_or_finish(
        self,
        tenant: str,
        id: str,
        contents: Mapping[str, Content] = MappingProxyType({}),
        *,
        scope: BlobScope = FULL_SCOPE,
    ) -> UploadWithPlan:
        """Return an upload that a client requests again, with a new plan for sending its bytes.

        The upload is finished if its blob has a reference in `scope` by now, or if the blob is in `contents`: small
        blobs, by ID, whose bytes came with the request. Raises `UploadNotFound`.
        """
        stored = await self._get_stored(tenant, id)
        if stored.upload.state is UploadState.OPEN:
            if (content := await self._find_matching(stored, contents, scope)) is not None:
                await self._stop_writer(id)
                with suppress(BlobNotFound, UploadEnded):  # The blob was just deleted, or the upload has just ended.
                    return UploadWithPlan(upload=(await self.verifier.finish(stored, content)).upload)
            # If the blob existed when the upload began, and was deleted since, no client can send its bytes.
            if stored.storage_key is None and await self._find_matching(stored, contents, FULL_SCOPE) is None:
                await self._store.run(EndUpload(tenant=tenant, id=id))
        return await self.get_with_plan(tenant, id)

    async def discard_prepared(self, prepared: PreparedUpload) -> None:
        """Discard a prepared upload that was not started: delete its multipart upload from the bucket."""
        if prepared.command.multipart is not None and prepared.command.storage_key is not None:
            trash = TrashedObject(storage_key=prepared.command.storage_key, multipart=prepared.command.multipart)
            try:
                await self._objects.delete(trash)
            except (IngotError, OSError) as error:
                report("object_not_deleted", error, storage_key=trash.storage_key)

    async def _with_plan(self, stored: StoredUpload, prepared: PreparedUpload) -> UploadWithPlan:
        self.counters.uploads_begun += 1
        if prepared.content is not None and stored.upload.state is UploadState.OPEN:
            return await self._finish_with_existing(stored, prepared.content)
        return UploadWithPlan(upload=stored.upload, plan=prepared.plan)

    async def _finish_with_existing(self, stored: StoredUpload, content: Content) -> UploadWithPlan:
        """Finish an upload that needs no bytes. Raises `BlobNotFound` if the existing blob was just deleted.

        The input of a job stays open if the store fails: a client that requests the job again sends the bytes again.
        """
        try:
            return UploadWithPlan(upload=(await self.verifier.finish(stored, content)).upload)
        except BaseException as error:
            if isinstance(error, StoreError | asyncio.CancelledError) and stored.storage_key is not None:
                raise
            await asyncio.shield(self._store.run(EndUpload(tenant=stored.tenant, id=stored.upload.id)))
            raise

    async def _find_existing(self, incoming: IncomingBlob) -> Content | None:
        """Return the announced blob if it has a reference in the scope and is undamaged.

        The content names the blob only by ID.
        """
        if incoming.blob_id is None:
            return None
        command = FindBlob(tenant=incoming.tenant, blob_id=incoming.blob_id, scope=incoming.scope)
        content_and_references = await self._store.run(command)
        if content_and_references is None:
            return None
        content, _ = content_and_references
        if content.damaged:
            return None
        check_announced(content, size=incoming.size, blob_id=incoming.blob_id, sha256=incoming.sha256)
        return msgspec.structs.replace(content, storage_key=None, inline=None)

    async def _find_matching(
        self, stored: StoredUpload, contents: Mapping[str, Content], scope: BlobScope
    ) -> Content | None:
        """Return the announced blob of an upload if it is in the scope or in `contents`, and if it matches."""
        upload = stored.upload
        incoming = IncomingBlob(
            tenant=stored.tenant,
            owner=upload.owner,
            size=upload.size,
            blob_id=upload.blob_id,
            sha256=upload.sha256,
            scope=scope,
        )
        with suppress(WrongLength, WrongDigest):
            if (content := await self._find_existing(incoming) or contents.get(upload.blob_id or "")) is not None:
                check_announced(content, size=upload.size, blob_id=upload.blob_id, sha256=upload.sha256)
            return content
        return None

    async def _content_from_data(self, incoming: IncomingBlob, data: bytes) -> Content:
        """Describe a small blob whose bytes came with the request that announces it.

        Raises `WrongLength`, `WrongDigest` or `StorageFull`.
        """
        await check_database_space(self._store, self._objects, len(data))
        content = inline_content(data)
        check_announced(content, size=incoming.size, blob_id=incoming.blob_id, sha256=incoming.sha256)
        self.counters.bytes_in += len(data)
        return content

    # -- bytes that clients send to the server ---------------------------------------------------------------

    async def receive(self, tenant: str, id: str, offset: int, parts: AsyncIterator[bytes]) -> Upload:
        """Write the bytes from `offset` on and return the upload with its progress. Earlier writers are stopped.

        Raises `UploadNotFound`, `UploadEnded`, `UploadOffsetWrong`, `WrongLength`, `StorageFull`, or `UploadTaken` when
        another client continues the upload. Bytes that were received before an error are kept.
        """
        with self.counters.count_operation("receive"):
            async with self._lock_for(id):
                stored = await self._begin_epoch(tenant, id)
                writer = self._writers[id] = UploadWriter(self._write_parts(stored, offset, parts))
            try:
                return await writer.run()
            finally:
                del self._writers[id]
                writer.ended.set()

    async def take_over(self, tenant: str, id: str) -> Upload:
        """Return the upload with its progress to a client that continues it. Earlier writers are stopped."""
        with self.counters.count_operation("resume"):
            async with self._lock_for(id):
                return (await self._begin_epoch(tenant, id)).upload

    def _lock_for(self, id: str) -> asyncio.Lock:
        """Return the lock that is held while a client takes over an upload."""
        return self._locks.setdefault(id, asyncio.Lock())

    async def _begin_epoch(self, tenant: str, id: str) -> StoredUpload:
        """Take over an upload. The bytes of the earlier writer are durable and recorded when this returns."""
        await self._get_stored(tenant, id)
        await self._stop_writer(id)
        return await self._store.run(TakeOverUpload(tenant=tenant, id=id))

    async def _stop_writer(self, id: str) -> None:
        if (writer := self._writers.get(id)) is not None:
            writer.stop()
            await writer.ended.wait()

    async def _write_parts(self, stored: StoredUpload, offset: int, parts: AsyncIterator[bytes]) -> Upload:
        assert stored.storage_key is not None, "an open upload has a storage key"
        size, received = stored.upload.size, stored.upload.received
        if offset != received:
            raise UploadOffsetWrong(f"the upload continues at offset {received}, got {offset}", offset=received)
        if size == received > 0:
            return stored.upload
        if stored.epoch == FIRST_WRITER_EPOCH:
            writer = await self._objects.write(stored.storage_key, size=size)
        else:
            writer = await self._objects.resume(stored.storage_key, offset=received)
        bounded_writer = BoundedWriter(self._store, stored, writer, bytes_max=self.bytes_max)
        try:
            await bounded_writer.write_all(parts)
        except BaseException:
            with suppress(StoreError):  # Report the first error. The client learns from the offset what was kept.
                await asyncio.shield(self._save_progress(stored, writer))
            raise
        updated = await asyncio.shield(self._save_progress(stored, writer))
        self.counters.bytes_in += updated.upload.received - received
        return updated.upload

    async def _save_progress(self, stored: StoredUpload, writer: ObjectWriter) -> StoredUpload:
        """Make the written bytes durable and record the progress. Complete the object after the last byte."""
        if writer.offset == stored.upload.size:
            await writer.finish()
        else:
            await writer.sync()
            await writer.abort()
        return await self._store.run(
            RecordUploadProgress(
                tenant=stored.tenant,
                id=stored.upload.id,
                epoch=stored.epoch,
                lifetime=UPLOAD_LIFETIME_MICROS,
                received=writer.offset,
            )
        )

    # -- bytes that clients send to the object store ---------------------------------------------------------

    async def sign_parts(self, tenant: str, id: str, parts: Sequence[ObjectPart]) -> list[SignedPart]:
        """Sign URLs for parts of an upload. Raises `UploadNotFound`, `UploadEnded` or `InvalidInput`."""
        with self.counters.count_operation("sign"):
            stored = await self._get_open(tenant, id)
            if self._signing is None or stored.multipart is None or stored.storage_key is None:
                raise InvalidInput("this upload has no parts", hint="Send its bytes to the URL of the upload.")
            size = stored.upload.size or 0
            plan = await self._signing.renew_plan(stored.storage_key, stored.multipart, size=size, sha256=None)
            _check_part_sizes(parts, size, plan.part_bytes or size)
            return await self._signing.sign_parts(stored.storage_key, stored.multipart, parts)

    async def list_parts(self, tenant: str, id: str) -> list[ObjectPart]:
        """List the stored parts of an open upload. Empty if the upload has no parts. Raises `UploadNotFound`."""
        stored = await self._get_stored(tenant, id)
        is_open = stored.upload.state is UploadState.OPEN
        if self._signing is None or not is_open or stored.multipart is None or stored.storage_key is None:
            return []
        return await self._signing.list_parts(stored.storage_key, stored.multipart)

    # -- completing and canceling ---------------------------------------------------------------------------

    async def get(self, tenant: str, id: str) -> Upload:
        """Return an upload. Raises `UploadNotFound`."""
        return (await self._get_stored(tenant, id)).upload

    async def complete(
        self, tenant: str, id: str, *, blob_id: str | None = None, sha256: str | None = None
    ) -> FinishedUpload:
        """Complete an upload of which all bytes were sent: verify them and store the blob.

        A large upload is verified in the background, and is returned in the state `verifying`. Repeating the call
        returns the result, or raises the error with which the upload failed. Raises `UploadIncomplete`, `WrongDigest`,
        `WrongLength`, and what `FinishUpload` does.
        """
        with self.counters.count_operation("complete"):
            stored = await self._get_stored(tenant, id)
            if stored.upload.state is not UploadState.OPEN:
                return await self._result_of(stored)
            try:
                stored = await self._require_complete(stored, blob_id, sha256)
                return await (
                    self.verifier.verify(stored) if stored.upload.state is UploadState.OPEN else self._result_of(stored)
                )
            except (UploadEnded, UploadIncomplete, BlobDamaged):  # A concurrent call may have completed it.
                stored = await self._get_stored(tenant, id)
                if stored.upload.state is UploadState.OPEN:
                    raise
                return await self._result_of(stored)

    async def _result_of(self, stored: StoredUpload) -> FinishedUpload:
        """Return a done or verifying upload, or raise the error of a failed one."""
        match stored.upload.state:
            case UploadState.DONE:
                return await self._done_result(stored)
            case UploadState.FAILED:
                if stored.upload.key is not None and stored.upload.error == KeyExists.code:
                    raise KeyExists.for_key(stored.upload.key)
                raise REJECTIONS.get(stored.upload.error or "", UploadEnded)()
        self.verifier.verify_in_background(stored)
        return FinishedUpload(upload=stored.upload)

    async def get_for_attempt(self, tenant: str, id: str, *, job_id: str, fence: int) -> Upload:
        """Return an upload of this attempt. Raises `UploadNotFound`."""
        stored = await self._get_stored(tenant, id)
        if (stored.upload.job_id, stored.fence) != (job_id, fence):
            raise UploadNotFound(f"there is no upload {id[:64]!r}")
        return stored.upload

    async def cancel(self, tenant: str, id: str) -> None:
        """Cancel an upload. An upload that is done is not changed."""
        with self.counters.count_operation("give_up"):
            await self._get_stored(tenant, id)
            await self._stop_writer(id)
            await self._store.run(EndUpload(tenant=tenant, id=id))

    async def _require_complete(self, stored: StoredUpload, blob_id: str | None, sha256: str | None) -> StoredUpload:
        """Check that all bytes are stored, and record the digests announced now. Raises `UploadIncomplete`."""
        size, received = stored.upload.size, stored.upload.received
        if self._signing is not None:
            received = await self._bytes_in_bucket(self._signing, stored)
        if size is None or received < size:
            raise UploadIncomplete(f"{received} of {size} bytes have been received")
        for announced, earlier in ((blob_id, stored.upload.blob_id), (sha256, stored.upload.sha256)):
            if announced is not None and earlier not in (None, announced):
                raise WrongDigest(f"the announced digest changed from {earlier} to {announced[:64]}")
        return await self._store.run(
            RecordUploadProgress(
                tenant=stored.tenant,
                id=stored.upload.id,
                epoch=stored.epoch,
                lifetime=UPLOAD_LIFETIME_MICROS,
                blob_id=None if blob_id is None else checks.digest(blob_id, name="BLAKE3"),
                sha256=None if sha256 is None else checks.digest(sha256, name="SHA-256"),
                verifying=size > SYNC_VERIFY_BYTES_MAX,
            )
        )

    async def _bytes_in_bucket(self, signing: SigningStore, stored: StoredUpload) -> int:
        """Return how many bytes the client has put into the bucket. If all parts are there, join them first."""
        assert stored.storage_key is not None, "an open upload has a storage key"
        if stored.multipart is not None:
            parts = await signing.list_parts(stored.storage_key, stored.multipart)
            if parts and (received := sum(part.size for part in parts)) < (stored.upload.size or 0):
                return received
            await signing.join_parts(stored.storage_key, stored.multipart, parts)
        description = await signing.describe(stored.storage_key)
        if description is None:
            raise UploadIncomplete
        return description.size

    async def _done_result(self, stored: StoredUpload) -> FinishedUpload:
        upload = stored.upload
        key = None if upload.key is None else await self._store.run(GetKey(tenant=stored.tenant, key=upload.key))
        is_unchanged = key is not None and key.blob_id == upload.blob_id
        return FinishedUpload(upload=upload, key=key if is_unchanged else None)

    async def _get_stored(self, tenant: str, id: str) -> StoredUpload:
        stored = await self._store.run(GetUpload(tenant=tenant, id=_check_upload_id(id)))
        if stored is None:
            raise UploadNotFound(f"there is no upload {id[:64]!r}")
        return stored

    async def _get_open(self, tenant: str, id: str) -> StoredUpload:
        stored = await self._get_stored(tenant, id)
        if stored.upload.state is not UploadState.OPEN:
            raise UploadEnded(f"the upload is {stored.upload.state}")
        return stored


def _check_part_sizes(parts: Sequence[ObjectPart], size: int, part_bytes: int) -> None:
    """Raise `InvalidInput` unless parts have the planned sizes: an upload must not exceed its reservation."""
    for part in parts:
        planned = min(part_bytes, size - (part.number - 1) * part_bytes)
        if part.size != planned:
            raise InvalidInput(
                f"part {part.number} must have {max(0, planned)} bytes, got {part.size}",
                hint=f"Send parts of {part_bytes} bytes; the last part has the remaining bytes.",
            )


def _check_upload_id(id: str) -> str:
    if not is_id(id):
        raise UploadNotFound(f"there is no upload {id[:64]!r}")
    return id
