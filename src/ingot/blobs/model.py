"""Blobs, keys, uploads, and what else people see of them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final, Literal

import msgspec

INLINE_BYTES_MAX: Final = 16 * 1024  # Blobs up to this size are kept in the database: they need no file.
PART_BYTES: Final = 1024 * 1024  # The bytes of a blob that one check covers.
CHECKSUM_BYTES: Final = 16


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of a blob, as an engine keeps them: where they are, or themselves, and what tells that they are whole.

    `place` names an object in the object store, which nobody writes again; without one the bytes are `inline`.
    `checks` holds the XXH3-128 of each `PART_BYTES` of it, one behind the other: what is read is compared before it is
    sent.
    """

    id: str
    sha256: str
    size: int
    storage_key: str | None = None
    inline: bytes | None = None
    part_checksums: bytes = b""
    damaged: bool = False


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's name for a blob. `owner` is who set it."""

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
    """Where an upload stands."""

    OPEN = "open"  # Bytes may come.
    VERIFYING = "verifying"  # All bytes are there, and are being read back.
    DONE = "done"  # The blob is there.
    FAILED = "failed"  # The bytes were not those that were announced, or its key was taken; nothing was kept.


FileKind = Literal["input", "output", "log", "checkpoint"]


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """A blob on its way in. `received` is what is safely here of it, where we receive it ourselves.

    `size`, `blob_id` and `sha256` are what was announced, and what it is when it is done. It is for a `key`, for a file
    of a job with this `name`, or for nothing yet: then the blob is kept as long as the upload is.
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
    error: str | None  # The code of what went wrong, of one that failed.
    """Error code, if the upload failed."""
    owner: str
    """Caller that began the upload: `token:`, `worker:` or `user:` and an ID."""
    created_at: datetime
    """When the upload began."""
    expires_at: datetime
    """When the upload is removed if nothing happens to it."""


class StoredUpload(msgspec.Struct, frozen=True, kw_only=True):
    """An upload with what is nobody's business outside.

    `epoch` is the number of the writer that came last. `multipart` is the id that the object store gave it, when its
    parts go there straight. `if_match` is what its key has to hold when it is done: `None` nothing at all, `*` anything
    or nothing.
    """

    upload: Upload
    tenant: str
    epoch: int
    reserved: int
    storage_key: str | None
    multipart: str | None
    if_match: str | None
    fence: int | None


class FinishedUpload(msgspec.Struct, frozen=True, kw_only=True):
    """An upload that is done, and the key that it was for, if it was for one."""

    upload: Upload
    key: Key | None = None


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """Why a blob is kept: what refers to it, and since when."""

    kind: Literal["key", "upload", "input", "output", "log", "payload", "checkpoint"]
    """Kind of the reference."""
    name: str  # The key, the id of the upload, or the name of the file.
    """The key, the ID of the upload, or the name of the job file."""
    job_id: str | None = None
    """ID of the job that the file belongs to."""
    job_type: str | None = None
    """Type of that job."""
    since: datetime | None = None
    """When the reference was created."""


class BlobScope(msgspec.Struct, frozen=True, kw_only=True):
    """What of the references in a tenant somebody may know of: of some keys, of uploads, of files of some types of job.

    Keys and types are told by the beginning of their names, in whole segments between `/` and `.`; `None` is all.
    """

    keys: tuple[str, ...] | None = None
    uploads: bool = True
    types: tuple[str, ...] | None = None


FULL_SCOPE: Final = BlobScope()


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """How much a tenant, or one owner in it, keeps: the sizes of all that its keys, job files and uploads refer to.

    `reserved_bytes` is what uploads that are under way may still need. `quota_bytes` is how much both may be.
    """

    bytes: int = 0
    """Total size in bytes of everything that keys, job files and finished uploads refer to."""
    reserved_bytes: int = 0
    """Bytes that unfinished uploads may still need."""
    keys: int = 0
    """Number of keys."""
    quota_bytes: int | None = None
    """Maximum of `bytes` and `reserved_bytes` together; `null` if there is no limit."""


class QuotaEventData(msgspec.Struct, frozen=True, kw_only=True):
    """What the event `quota.warning` tells: four fifths of a quota are taken."""

    scope: Literal["tenant", "token"]
    owner: str | None
    usage_bytes: int
    quota_bytes: int


class BlobEventData(msgspec.Struct, frozen=True, kw_only=True):
    """What the events `blob.stored` and `blob.deleted` tell. `key` is missing where the blob has no name of its own."""

    blob_id: str
    size: int
    key: str | None = None
    content_type: str | None = None
    job_id: str | None = None
    name: str | None = None


class StoreIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The object store that has the objects of a database, and the name by which that knows the database."""

    store_id: str
    database_id: str


class TrashedObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object that nothing refers to, and nobody ever will: its place is not used again."""

    storage_key: str
    multipart: str | None = None


class BlobCollectionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a round of the collector did, or with a dry run would do."""

    blobs: int = 0
    """Number of deleted blobs."""
    bytes: int = 0
    """Size of the deleted blobs in bytes."""
    uploads: int = 0
    """Number of expired uploads that were removed."""
    objects: int = 0
    """Number of objects deleted from the trash."""
    dry_run: bool = False
    """Whether this is a preview that changed nothing."""


class PurgeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that were deleted, or would be, and their bytes."""

    keys: int = 0
    """Number of deleted keys; with `dry_run`, number of keys that would be deleted."""
    bytes: int = 0
    """Total size of the blobs of these keys, in bytes."""
    more: bool = False
    """Whether there are more keys than were counted."""
    dry_run: bool = False
    """Whether this is a preview that changed nothing."""


class BlobMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """How things stand with the blobs of all tenants."""

    blobs: int = 0
    bytes: int = 0
    damaged: int = 0
    tombstones: int = 0
    trash: int = 0
    uploads: int = 0
    verified_before: datetime | None = None  # Every blob was looked at since then.
