"""Bytes that come in: what was announced of them, and how they get to their place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from ingot.blobs import checks
from ingot.blobs.errors import BlobTooLarge, QuotaExceeded, WrongDigest, WrongLength
from ingot.blobs.hashing import Hasher
from ingot.blobs.model import Content, FileKind, StoredUpload
from ingot.blobs.pipeline import WritePipeline
from ingot.blobs.ports import BeginUpload, ObjectWriter, RecordUploadProgress
from ingot.kernel.clock import MICROS
from ingot.kernel.commands import Store
from ingot.kernel.content_types import BINARY_CONTENT_TYPE
from ingot.kernel.ids import new_id

UPLOAD_LIFETIME_MICROS: Final = 86_400 * MICROS  # So long an upload lives without news,
CALL_LIFETIME_MICROS: Final = 1_800 * MICROS  # and so long one that comes with one call: nobody can go on with it.
RENEW_SECONDS: Final = 600.0
RESERVATION_STEP_BYTES: Final = (
    16 * 1024 * 1024
)  # Set aside at a time, for bytes of which nobody says how many they are.


class JobFileTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a job that an upload is for. With a fence it is that attempt's."""

    job_id: str
    kind: FileKind
    name: str
    fence: int | None = None


class IncomingBlob(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of a blob that comes, and who brings it."""

    tenant: str
    owner: str
    size: int | None = None
    blob_id: str | None = None
    sha256: str | None = None
    content_type: str = BINARY_CONTENT_TYPE
    original_name: str | None = None
    owner_quota: int | None = None

    def checked(self, bytes_max: int) -> IncomingBlob:
        """The same, as it can be kept. Raises `InvalidInput` or `BlobTooLarge`."""
        if self.size is not None and self.size > bytes_max:
            raise too_large_error(bytes_max)
        return msgspec.structs.replace(
            self,
            blob_id=None if self.blob_id is None else checks.digest(self.blob_id, name="BLAKE3"),
            sha256=None if self.sha256 is None else checks.digest(self.sha256, name="SHA-256"),
            content_type=checks.content_type(self.content_type),
            original_name=None if self.original_name is None else checks.file_name(self.original_name),
        )

    def begin_command(
        self,
        *,
        id: str | None = None,
        key: str | None = None,
        if_match: str | None = None,
        file: JobFileTarget | None = None,
        storage_key: str | None,
        store_id: str | None,
        multipart: str | None = None,
        lifetime: int = UPLOAD_LIFETIME_MICROS,
    ) -> BeginUpload:
        """The command that begins an upload of it."""
        return BeginUpload(
            id=id or new_id(),
            tenant=self.tenant,
            owner=self.owner,
            reserve=RESERVATION_STEP_BYTES if self.size is None else self.size,
            lifetime=lifetime,
            size=self.size,
            blob_id=self.blob_id,
            sha256=self.sha256,
            content_type=self.content_type,
            original_name=self.original_name,
            key=key,
            if_match=if_match,
            job_id=None if file is None else file.job_id,
            fence=None if file is None else file.fence,
            file=None if file is None else file.kind,
            name=None if file is None else checks.file_name(file.name, name="name"),
            storage_key=storage_key,
            store_id=store_id,
            multipart=multipart,
            owner_quota=self.owner_quota,
        )


def check_announced(content: Content, *, size: int | None, blob_id: str | None, sha256: str | None) -> None:
    """Raises `WrongLength` or `WrongDigest` when these are not the bytes that were announced."""
    if size is not None and content.size != size:
        raise WrongLength(f"there are {content.size} bytes; {size} were announced")
    for what, announced, found in (("BLAKE3", blob_id, content.id), ("SHA-256", sha256, content.sha256)):
        if announced not in (None, found):
            raise WrongDigest(f"the {what} of the bytes is {found}; {announced} was announced")


def too_large_error(bytes_max: int) -> BlobTooLarge:
    """That a blob is larger than we take."""
    return BlobTooLarge(f"the blob has more than {bytes_max} bytes")


class BoundedWriter:
    """Writes what comes to its place, within what was announced and reserved. With a hasher it is hashed on its way."""

    def __init__(
        self,
        store: Store,
        begun: StoredUpload,
        writer: ObjectWriter,
        *,
        bytes_max: int,
        lifetime: int = UPLOAD_LIFETIME_MICROS,
        owner_quota: int | None = None,
        hasher: Hasher | None = None,
    ) -> None:
        self._store = store
        self._upload = begun
        self._writer = writer
        self._bytes_max = bytes_max
        self._lifetime = lifetime
        self._owner_quota = owner_quota
        self._hasher = hasher
        self._size = begun.upload.size
        self._reserved = begun.reserved
        self._renew_at = _now() + RENEW_SECONDS

    async def write_all(self, parts: AsyncIterator[bytes]) -> None:
        """Take in all of these. Raises `WrongLength`, `BlobTooLarge`, `QuotaExceeded`, `UploadTaken`."""
        begun = self._writer.offset
        async with WritePipeline(self._writer, self._hasher) as pipeline:
            try:
                async for part in parts:
                    await self._ensure_reserved(begun + pipeline.received_bytes + len(part))
                    await pipeline.write(part)
            finally:
                await pipeline.flush()  # What came before the end of the line is kept too.

    async def _ensure_reserved(self, size: int) -> None:
        if self._size is not None and size > self._size:
            raise WrongLength(f"there are more than the {self._size} bytes that were announced")
        if size > self._bytes_max:
            raise too_large_error(self._bytes_max)
        if self._size is None and size > self._reserved:
            try:
                await self._record_progress(size + RESERVATION_STEP_BYTES)
            except QuotaExceeded:
                await self._reserve_exactly(size)
        elif _now() > self._renew_at:
            await self._record_progress(None)

    async def _reserve_exactly(self, size: int) -> None:
        try:
            await self._record_progress(size)
        except QuotaExceeded as error:  # What was set aside for this blob is not what others take.
            usage = error.usage - self._reserved
            raise QuotaExceeded(scope=error.scope, usage=usage, limit=error.limit, requested=size) from None

    async def _record_progress(self, reserved: int | None) -> None:
        noted = await self._store.run(
            RecordUploadProgress(
                tenant=self._upload.tenant,
                id=self._upload.upload.id,
                epoch=self._upload.epoch,
                lifetime=self._lifetime,
                reserved=reserved,
                owner_quota=self._owner_quota,
            )
        )
        self._reserved = noted.reserved
        self._renew_at = _now() + RENEW_SECONDS


def _now() -> float:
    return asyncio.get_running_loop().time()
