"""Blobs, keys, uploads and references."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

import msgspec

from ingot.kernel.clock import MICROS, to_datetime

INLINE_BYTES_MAX: Final = 16 * 1024  # Blobs up to this size are stored in the database and need no object.
PART_BYTES: Final = 1024 * 1024  # The number of bytes that one part checksum covers.
CHECKSUM_BYTES: Final = 16
UNFINISHED_UPLOADS_MAX: Final = 10_000  # Per tenant, with the inputs of jobs.
GRACE_MICROS: Final = 4500 * MICROS  # How long deleted blobs are kept, unless a server has recorded another time.


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of a blob as an engine stores them: inline, or as the storage key of an object."""

    id: str
    sha256: str
    size: int
    storage_key: str | None = None
    """Name of the object, which is never written again; `None` if the bytes are `inline`."""
    inline: bytes | None = None
    part_checksums: bytes = b""
    """XXH3-128 of each `PART_BYTES` of the blob, concatenated. Bytes are compared with it before they are sent."""
    damaged: bool = False
    """Whether the stored bytes differ from the digests."""
    tenant: str | None = None
    """Tenant whose blob it is; `None` if it is not stored yet."""
    etag: str | None = None
    """ETag that the object store gave to the object when it was verified; `None` if unknown."""


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's name for a blob."""

    key: str
    """Name of the blob: a path of up to 1,024 bytes, such as `reports/march.pdf`."""
    blob_id: str
    """ID of the blob."""
    sha256: str
    """SHA-256 of the blob, as 64 hexadecimal digits."""
    size: int
    """Size in bytes."""
    content_type: str
    """Content type, such as `application/pdf`."""
    original_name: str | None
    """Original name of the file, if known."""
    uploaded_at: datetime
    """When the key was set."""
    owner: str
    """Caller that set the key: `token:`, `worker:` or `user:` and an ID."""


class UploadState(StrEnum):
    """The state of an upload."""

    OPEN = "open"
    """Bytes can be sent."""
    VERIFYING = "verifying"
    """All bytes have arrived and are being read back."""
    DONE = "done"
    """The blob is stored."""
    FAILED = "failed"
    """The bytes differ from what was announced, or the key was taken meanwhile. Nothing was stored."""


FileKind = Literal["input", "output", "log", "checkpoint"]


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """A blob that is being uploaded.

    The upload is for a `key`, for a job file with a `name`, or for neither. In the last case the blob is kept as long
    as the upload exists.
    """

    id: str
    """ID of the upload."""
    state: UploadState
    """State of the upload."""
    size: int | None
    """Size in bytes: as announced, and as stored once the upload is done. `null` if not known yet."""
    received: int
    """Number of bytes that are stored so far, if they are sent to the server and not to a bucket."""
    blob_id: str | None
    """ID of the blob: as announced, and as computed once the upload is done."""
    sha256: str | None
    """SHA-256 of the blob: as announced, and as computed once the upload is done."""
    content_type: str
    """Content type, such as `application/pdf`."""
    original_name: str | None
    """Original name of the file, if known."""
    key: str | None
    """Key that is set when the upload is done."""
    job_id: str | None
    """ID of the job that the upload is for."""
    file: FileKind | None
    """Kind of job file that the upload is for."""
    name: str | None
    """Name of the job file that the upload is for."""
    error: str | None
    """Error code, if the upload failed."""
    owner: str
    """Caller that began the upload: `token:`, `worker:` or `user:` and an ID."""
    created_at: datetime
    """When the upload began."""
    expires_at: datetime
    """When the upload is removed if nothing happens to it."""


class StoredUpload(msgspec.Struct, frozen=True, kw_only=True):
    """An upload with internal fields, which no response contains."""

    upload: Upload
    tenant: str
    epoch: int
    """Number of the latest writer."""
    reserved: int
    """Reserved bytes."""
    storage_key: str | None
    multipart: str | None
    """ID that the object store gave to the multipart upload, if clients send parts directly there."""
    if_match: str | None
    """Blob ID that the key must have when the upload is done. `*` accepts any or no blob, and `None` only no blob."""
    fence: int | None


class FinishedUpload(msgspec.Struct, frozen=True, kw_only=True):
    """An upload that is done, with the key that it has set, if any."""

    upload: Upload
    key: Key | None = None


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """A key, upload or job file that keeps a blob."""

    kind: Literal["key", "upload", "input", "output", "log", "payload", "checkpoint"]
    """Kind of the reference."""
    name: str
    """The key, the ID of the upload, or the name of the job file."""
    job_id: str | None = None
    """ID of the job that the file belongs to."""
    job_type: str | None = None
    """Type of that job."""
    since: datetime | None = None
    """When the reference was created."""


class BlobScope(msgspec.Struct, frozen=True, kw_only=True):
    """The references in a tenant that a caller may see."""

    keys: tuple[str, ...] | None = None
    """Beginnings of keys in whole segments, which end at `/` or `.`; `None` for all keys."""
    uploads: bool = True
    types: tuple[str, ...] | None = None
    """Beginnings of the job types whose files are visible, in whole segments; `None` for all types."""
    owner: str | None = None
    """Caller whose own keys, uploads and job files are in the scope as well."""
    job_id: str | None = None
    """Job whose files are in the scope as well."""


FULL_SCOPE: Final = BlobScope()


class FreedTimes(msgspec.Struct, frozen=True, array_like=True):
    """When deleted bytes become free, in microseconds: deleted blobs, and objects that clients may still send."""

    blobs_from: int | None = None
    blobs_by: int | None = None
    objects_from: int | None = None
    objects_by: int | None = None

    def freed_from(self, now: int) -> datetime:
        """Return when the first bytes become free. `now` is in microseconds."""
        times = [at for at in (self.blobs_from, self.objects_from) if at is not None]
        return to_datetime(max(now, min(times, default=now)))

    def freed_by(self, now: int) -> datetime:
        """Return when all bytes are free. `now` is in microseconds."""
        return to_datetime(max(now, self.blobs_by or now, self.objects_by or now))


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes that a tenant, or one owner in it, keeps."""

    bytes: int = 0
    """Total size in bytes of everything that keys, job files and finished uploads refer to."""
    reserved_bytes: int = 0
    """Bytes reserved for unfinished uploads. They count against the quota until the uploads end."""
    deleted_bytes: int = 0
    """Bytes of deleted blobs and ended uploads that are still stored. They count against the quota."""
    freed_from: datetime | None = None
    """When the first of the deleted bytes of the tenant become free; `null` if there are none."""
    freed_by: datetime | None = None
    """When all deleted bytes of the tenant are free, at the latest; `null` if there are none."""
    keys: int = 0
    """Number of keys."""
    quota_bytes: int | None = None
    """Maximum of `bytes`, `reserved_bytes` and `deleted_bytes` together; `null` if there is no limit."""


class QuotaEventData(msgspec.Struct, frozen=True, kw_only=True):
    """The data of the event `quota.warning`: 80 % of a quota are used."""

    scope: Literal["tenant", "token"]
    owner: str | None
    usage_bytes: int
    quota_bytes: int


class BlobEventData(msgspec.Struct, frozen=True, kw_only=True):
    """The data of the events `blob.stored` and `blob.deleted`."""

    blob_id: str
    size: int
    key: str | None = None
    content_type: str | None = None
    job_id: str | None = None
    name: str | None = None


class StoreIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The ID of an object store, and the ID of the database to which its objects belong."""

    store_id: str
    database_id: str
    in_use: bool = False
    """Whether a running server uses this object store; only set if another one was to be registered."""


class TombstonedBlob(msgspec.Struct, frozen=True, kw_only=True):
    """A blob without references that will be deleted. `holder` is its tenant, or a name if that was removed."""

    holder: str
    blob_id: str


class TrashedObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object in the trash. Nothing refers to it, and its storage key is never used again."""

    storage_key: str
    multipart: str | None = None


class BlobCollectionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one round of the garbage collector, or of its preview."""

    blobs: int = 0
    """Number of deleted blobs."""
    bytes: int = 0
    """Size of the deleted blobs in bytes."""
    uploads: int = 0
    """Number of expired uploads that were removed."""
    objects: int = 0
    """Number of objects deleted from the trash."""
    waiting_bytes: int = 0
    """Bytes that are deleted, but were still needed, or may still be read or sent."""
    freed_from: datetime | None = None
    """When the first of the waiting bytes become free; `null` if there are none."""
    freed_by: datetime | None = None
    """When all of the waiting bytes are free, at the latest; `null` if there are none."""
    dry_run: bool = False
    """Whether this is a preview that changed nothing."""


class PurgeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a purge, or of its preview."""

    keys: int = 0
    """Number of deleted keys; with `dry_run`, number of keys that would be deleted."""
    bytes: int = 0
    """Total size of the blobs of these keys, in bytes."""
    more: bool = False
    """Whether there are more keys than were counted."""
    dry_run: bool = False
    """Whether this is a preview that changed nothing."""


class BlobMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of the blobs of all tenants."""

    blobs: int = 0
    bytes: int = 0
    deleted_bytes: int = 0
    freed_from: datetime | None = None
    freed_by: datetime | None = None
    damaged: int = 0
    tombstones: int = 0
    trash: int = 0
    uploads: int = 0
    verified_before: datetime | None = None
    """Oldest time at which a blob was last verified; `None` if there are no blobs."""
