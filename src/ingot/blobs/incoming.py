"""Incoming blobs: what the client announced, and writing the bytes within limits and reservations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from ingot.blobs import checks
from ingot.blobs.errors import BlobTooLarge, QuotaExceeded, WrongDigest, WrongLength
from ingot.blobs.hashing import Hasher
from ingot.blobs.model import FULL_SCOPE, BlobScope, Content, FileKind, StoredUpload
from ingot.blobs.pipeline import WritePipeline
from ingot.blobs.ports import BeginUpload, ObjectWriter, RecordUploadProgress
from ingot.kernel.clock import MICROS
from ingot.kernel.commands import Store
from ingot.kernel.content_types import BINARY_CONTENT_TYPE
from ingot.kernel.ids import new_id

# How long an upload lives without progress.
UPLOAD_LIFETIME_MICROS: Final = 86_400 * MICROS
# How long an upload that is sent with one request lives without progress. No client can resume it, so it is shorter.
CALL_LIFETIME_MICROS: Final = 1_800 * MICROS
RENEW_SECONDS: Final = 600.0
RESERVATION_STEP_BYTES: Final = 16 * 1024 * 1024  # Bytes that a blob of unknown size reserves at a time.


class JobFileTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The file of a job that an upload is for. With a `fence`, it is a file of the attempt under this fence."""

    job_id: str
    kind: FileKind
    name: str
    fence: int | None = None


class IncomingBlob(msgspec.Struct, frozen=True, kw_only=True):
    """A blob that a client is about to send: its owner and what the client announced about it.

    Only a blob with a reference in `scope` needs no bytes. Knowing the digest of any other blob grants nothing.
    """

    tenant: str
    owner: str
    size: int | None = None
    blob_id: str | None = None
    sha256: str | None = None
    content_type: str = BINARY_CONTENT_TYPE
    original_name: str | None = None
    owner_quota: int | None = None
    scope: BlobScope = FULL_SCOPE

    def checked(self, bytes_max: int) -> IncomingBlob:
        """Return a copy with validated fields. Raises `InvalidInput` or `BlobTooLarge`."""
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
        server: str | None = None,
        lifetime: int = UPLOAD_LIFETIME_MICROS,
        url_lifetime: int = 0,
    ) -> BeginUpload:
        """Create the command that begins an upload of this blob. Both lifetimes are in microseconds."""
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
            server=server,
            url_lifetime=url_lifetime,
        )


def check_announced(content: Content, *, size: int | None, blob_id: str | None, sha256: str | None) -> None:
    """Compare received content with the announced size and digests. Raises `WrongLength` or `WrongDigest`."""
    if size is not None and content.size != size:
        raise WrongLength(f"{size} bytes were announced, got {content.size}")
    for algorithm, announced, actual in (("BLAKE3", blob_id, content.id), ("SHA-256", sha256, content.sha256)):
        if announced not in (None, actual):
            raise WrongDigest(f"the announced {algorithm} is {announced}, but that of the bytes is {actual}")


def too_large_error(bytes_max: int) -> BlobTooLarge:
    """Create the error for a blob that is larger than this server accepts."""
    return BlobTooLarge(f"the blob exceeds the maximum of {bytes_max} bytes")


class BoundedWriter:
    """A writer that keeps an object within its announced size, the size limit and its reservation.

    With a hasher, the bytes are hashed as well.
    """

    def __init__(
        self,
        store: Store,
        stored: StoredUpload,
        writer: ObjectWriter,
        *,
        bytes_max: int,
        lifetime: int = UPLOAD_LIFETIME_MICROS,
        owner_quota: int | None = None,
        hasher: Hasher | None = None,
    ) -> None:
        self._store = store
        self._upload = stored
        self._writer = writer
        self._bytes_max = bytes_max
        self._lifetime = lifetime
        self._owner_quota = owner_quota
        self._hasher = hasher
        self._size = stored.upload.size
        self._reserved = stored.reserved
        self._renew_at = _now() + RENEW_SECONDS

    async def write_all(self, parts: AsyncIterator[bytes]) -> None:
        """Write all parts. Raises `WrongLength`, `BlobTooLarge`, `QuotaExceeded` or `UploadTaken`."""
        start = self._writer.offset
        async with WritePipeline(self._writer, self._hasher) as pipeline:
            try:
                async for part in parts:
                    await self._ensure_reserved(start + pipeline.received_bytes + len(part))
                    await pipeline.write(part)
            finally:
                await pipeline.flush()  # Keep what arrived, also when the connection broke.

    async def _ensure_reserved(self, size: int) -> None:
        if self._size is not None and size > self._size:
            raise WrongLength(f"{self._size} bytes were announced, got more")
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
        except QuotaExceeded as error:
            # The reservation of this blob is part of the reported usage, but not what stands in its way.
            usage = error.usage - self._reserved
            raise QuotaExceeded(
                scope=error.scope,
                usage=usage,
                limit=error.limit,
                requested=size,
                deleted=error.deleted,
                freed=error.freed,
            ) from None

    async def _record_progress(self, reserved: int | None) -> None:
        stored = await self._store.run(
            RecordUploadProgress(
                tenant=self._upload.tenant,
                id=self._upload.upload.id,
                epoch=self._upload.epoch,
                lifetime=self._lifetime,
                reserved=reserved,
                owner_quota=self._owner_quota,
            )
        )
        self._reserved = stored.reserved
        self._renew_at = _now() + RENEW_SECONDS


def _now() -> float:
    return asyncio.get_running_loop().time()
