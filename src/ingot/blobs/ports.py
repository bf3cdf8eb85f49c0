"""The commands that this package sends to an engine, and the protocols of an object store.

Bytes are always durable in the object store before a command names them.

**References keep a blob:** a key, an upload, or a file of a job. A removed reference leaves a tombstone with the time.
A blob belongs to one tenant: equal bytes of two tenants are two blobs. It is collected when nothing in its tenant
refers to it and its tombstone is older than the grace. The same transaction puts its object into the trash. The
object is deleted afterwards. Its storage key is never used again, so a late deletion cannot hit newer bytes. While a
client may have a signed URL to send the object, it stays in the trash, and is deleted again when the URL has expired.

**Usage** of a tenant, and of each owner in it, is the total size of its keys, its job files and its done uploads that
belong to neither, plus the reservations of open uploads, plus the bytes that were deleted and are still stored. Each
reference counts, also several to the same blob. Deleted bytes count once, for the owner of the last reference. The
quota of a tenant is in its limits; that of a token comes with the command (`owner_quota`). A command that would exceed
one of them raises `QuotaExceeded`. A command with which usage reaches 80 % of a quota emits `quota.warning`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import msgspec

from ingot.blobs.model import (
    FULL_SCOPE,
    BlobMetrics,
    BlobScope,
    Content,
    FileKind,
    FinishedUpload,
    Key,
    PurgeResult,
    Reference,
    StoredUpload,
    StoreIdentity,
    TombstonedBlob,
    TrashedObject,
    Usage,
)
from ingot.events.audit import Act
from ingot.kernel.commands import Command
from ingot.kernel.content_types import BINARY_CONTENT_TYPE


class BeginUpload(Command[StoredUpload], frozen=True, kw_only=True):
    """Begin an upload and reserve `reserve` bytes for it.

    The caller creates the `id`; repeating it returns the existing upload. The upload expires after `lifetime`
    microseconds without progress. `storage_key` names the object in the store with the ID `store_id`.

    Raises `QuotaExceeded` or `TenantNotFound`, and `KeyExists` or `KeyChanged` if its key could not be set now. Raises
    `TooManyUploads` if the tenant has `UNFINISHED_UPLOADS_MAX` unfinished uploads. An upload of an attempt raises
    `LeaseLost` unless the job runs in this tenant under this `fence`. Raises `ObjectsElsewhere` if a server that was
    started later has moved the database to another object store.

    With the ID of a `server`, the bytes arrive in one request to this server. The upload ends when the server is gone,
    because no client can continue it.

    `url_lifetime` is how long a client may be able to send the object with a signed URL after the upload has ended, in
    microseconds. For this time, an object that is not kept stays in the trash.
    """

    id: str
    tenant: str
    owner: str
    reserve: int
    lifetime: int
    size: int | None = None
    blob_id: str | None = None
    sha256: str | None = None
    content_type: str = BINARY_CONTENT_TYPE
    original_name: str | None = None
    key: str | None = None
    if_match: str | None = None
    job_id: str | None = None
    fence: int | None = None
    file: FileKind | None = None
    name: str | None = None
    storage_key: str | None = None
    store_id: str | None = None
    multipart: str | None = None
    owner_quota: int | None = None
    server: str | None = None
    url_lifetime: int = 0


class TakeOverUpload(Command[StoredUpload], frozen=True, kw_only=True):
    """Give an open upload the next epoch, so that calls of earlier writers are rejected. The first epoch is 1.

    Raises `UploadNotFound`, or `UploadEnded` unless the upload is open.
    """

    tenant: str
    id: str


class RecordUploadProgress(Command[StoredUpload], frozen=True, kw_only=True):
    """Record the progress of an upload and extend its life by `lifetime` microseconds from now.

    Fields that are `None` stay as they are. `received` is the number of durable bytes. `reserved` replaces the
    reservation; a smaller one gives the difference back. `blob_id` and `sha256` replace the announced digests. With
    `verifying`, the upload accepts no more bytes.

    Raises `UploadNotFound`, `UploadEnded`, `UploadTaken` for an older `epoch`, or `QuotaExceeded`.
    """

    tenant: str
    id: str
    epoch: int
    lifetime: int
    received: int | None = None
    reserved: int | None = None
    blob_id: str | None = None
    sha256: str | None = None
    verifying: bool = False
    owner_quota: int | None = None


class FinishUpload(Command[FinishedUpload], frozen=True, kw_only=True):
    """Store the verified blob of an upload, set the key or job file that the upload is for, and emit `blob.stored`.

    The reservation becomes usage of exactly the size. With an `epoch`, only the writer of that epoch can finish.

    If the tenant already has the same bytes, their object stays and the new one goes to the trash; if the stored object
    is damaged, the new one replaces it. Content without a storage key and without inline bytes names a blob that the
    tenant already has; `BlobNotFound` is raised if there is none. An object of the upload that the content does not
    name goes to the trash.

    Repeating the command with the same bytes returns the same result, with other bytes it raises `UploadEnded`. Raises
    `UploadNotFound`, `UploadTaken`, `KeyExists`, `KeyChanged`, `QuotaExceeded` or `LeaseLost`, and leaves the upload
    unchanged then. An output of a job belongs to the upload until the attempt under its fence has succeeded.
    """

    tenant: str
    id: str
    content: Content
    lifetime: int
    epoch: int | None = None
    owner_quota: int | None = None


class EndUpload(Command[None], frozen=True, kw_only=True):
    """End an upload that is not done: put its object into the trash, where its reservation counts as deleted bytes.

    With an `error` code, the upload is failed and is kept for `lifetime` microseconds; without, it is removed. An
    upload that is done or does not exist is not changed.
    """

    tenant: str
    id: str
    error: str | None = None
    lifetime: int = 0


class PutBlob(Command[Key], frozen=True, kw_only=True):
    """Store a small blob under a key, like `BeginUpload` and `FinishUpload` in one, without leaving an upload.

    Raises what these commands raise. Repeating the command with the same `id`, key and bytes, as after an unknown
    outcome, returns the same key.
    """

    id: str
    tenant: str
    owner: str
    key: str
    content: Content
    content_type: str = BINARY_CONTENT_TYPE
    original_name: str | None = None
    if_match: str | None = None
    owner_quota: int | None = None


class DeleteKey(Command[Key], frozen=True, kw_only=True):
    """Delete a key, reduce usage, leave a tombstone, emit `blob.deleted`, and return the deleted key.

    With `if_match`, the key is only deleted if it refers to this blob. Raises `KeyNotFound` or `KeyChanged`. The key
    can be set again at once.
    """

    tenant: str
    key: str
    if_match: str | None = None


class PurgeKeys(Command[PurgeResult], frozen=True, kw_only=True):
    """Delete up to `limit` keys of an owner, or of all owners with `None`, like `DeleteKey`.

    The audit log records it as `keys.purged`. `more` of the result is true if keys may be left. Raises
    `TenantNotFound`.
    """

    tenant: str
    owner: str | None
    limit: int
    act: Act


class SweepUploads(Command[int], frozen=True, kw_only=True):
    """End up to `limit` uploads that have expired or whose attempt no longer runs, and return their number.

    Open uploads end as with `EndUpload`. Expired uploads that have ended are removed; a done one leaves a tombstone for
    its reference. Done uploads of an attempt are kept as long as the attempt runs.
    """

    limit: int


class CollectBlob(Command[int | None], frozen=True, kw_only=True):
    """Delete a blob if nothing has referred to it for `grace` microseconds; return its size, or `None` if it is kept.

    The bytes of a blob without an object are free then. With `dry_run` nothing changes; the result is what it would be.
    """

    holder: str
    blob_id: str
    grace: int
    dry_run: bool = False


class ForgetTrash(Command[None], frozen=True, kw_only=True):
    """Record that these objects have been deleted from the store with the ID `store_id`: their bytes are free.

    An object that a client could send at that time stays in the trash, and `ListTrash` returns it again when that is no
    longer possible. Raises `ObjectsElsewhere` if the objects of the database are in another store.
    """

    storage_keys: Sequence[str]
    store_id: str | None = None


class RecordScrub(Command[None], frozen=True, kw_only=True):
    """Record that these blobs were read completely, and which of them are damaged.

    Each blob is given by its tenant, its ID, and the storage key that was read, or `None` for inline bytes. A blob that
    has another storage key by now, or is deleted, is not changed, because its present bytes were not read.

    Objects were read from the store with the ID `store_id`. Raises `ObjectsElsewhere`, and marks nothing damaged, if
    the objects of the database are in another store.
    """

    intact: Sequence[tuple[str, str, str | None]] = ()
    damaged: Sequence[tuple[str, str, str | None]] = ()
    store_id: str | None = None


class RegisterObjectStore(Command[StoreIdentity], frozen=True, kw_only=True):
    """Claim an object store for the database, and register the `server` that uses it. Return the recorded identity.

    The ID of another store stays if there are objects in it, or if a running server uses it. The first call creates
    the ID of the database, which is unique.

    With `exclusive`, only one server at a time can have the object store open. Earlier servers are gone then, and their
    uploads end, see `BeginUpload`. On SQLite this is always so.

    `grace` is recorded as the time in microseconds for which deleted blobs are kept, for `GetUsage` and error messages.
    """

    store_id: str
    server: str | None = None
    exclusive: bool = False
    grace: int | None = None


class RenewServer(Command[int], frozen=True, kw_only=True):
    """Record that a server is running, end up to `limit` uploads of servers that are gone, and return their number.

    A server is gone when it has unregistered, or has not renewed its registration for half a minute. The latter counts
    only if this server has renewed its own all that time: otherwise the database may have been unreachable for all of
    them. Raises `ObjectsElsewhere` if the objects of the database are in another store.
    """

    server: str
    store_id: str
    limit: int


class UnregisterServer(Command[None], frozen=True, kw_only=True):
    """Record that a server has ended."""

    server: str


class GetKey(Command[Key | None], frozen=True, kw_only=True):
    """Return the key with this name, or `None`."""

    tenant: str
    key: str


class OpenKey(Command[tuple[Key, Content] | None], frozen=True, kw_only=True):
    """Return the key with this name and the content of its blob, read in one transaction, or `None`."""

    tenant: str
    key: str


class ListKeys(Command[list[Key]], frozen=True, kw_only=True):
    """List the keys with a prefix that follow `after`, in the order of their UTF-8 bytes.

    The cost does not depend on the number of other keys.
    """

    tenant: str
    prefix: str
    after: str
    limit: int


class FindBlob(Command[tuple[Content, list[Reference]] | None], frozen=True, kw_only=True):
    """Return a blob with up to 100 of its references in this tenant and `scope`, or `None` if it has none there.

    Files of an attempt that has not succeeded, and uploads that are not done, are not references.
    """

    tenant: str
    blob_id: str
    scope: BlobScope = FULL_SCOPE


class GetUpload(Command[StoredUpload | None], frozen=True, kw_only=True):
    """Return the upload with this ID, or `None`."""

    tenant: str
    id: str


class ListVerifyingUploads(Command[list[StoredUpload]], frozen=True, kw_only=True):
    """List the uploads whose bytes must be read back, the longest waiting first."""

    limit: int


class GetUsage(Command[Usage], frozen=True, kw_only=True):
    """Return the usage of a tenant, or of one owner in it. The usage of an owner has no `quota_bytes`.

    The usage of a tenant or owner that does not exist is zero.
    """

    tenant: str
    owner: str | None = None


class PreviewPurge(Command[PurgeResult], frozen=True, kw_only=True):
    """Return how many keys a purge would delete in total, and their bytes."""

    tenant: str
    owner: str | None


class ListTombstonedBlobs(Command[list[TombstonedBlob]], frozen=True, kw_only=True):
    """List blobs with a tombstone older than `grace` microseconds, oldest first.

    The list continues after the blob `after`. It starts at the beginning if that blob no longer has a tombstone.
    """

    grace: int
    limit: int
    after: TombstonedBlob | None = None


class ListTrash(Command[list[TrashedObject]], frozen=True, kw_only=True):
    """List objects to delete now that follow `after`, in the order of their storage keys."""

    limit: int
    after: str = ""


class FindKnownStorageKeys(Command[set[str]], frozen=True, kw_only=True):
    """Return those of these storage keys that a blob, an upload or the trash names, in one snapshot."""

    storage_keys: Sequence[str]


class ListBlobsToScrub(Command[list[Content]], frozen=True, kw_only=True):
    """List blobs that were last read completely, or stored, before this time, the oldest first."""

    before: int
    limit: int


class GetBlobMetrics(Command[BlobMetrics], frozen=True, kw_only=True):
    """Return the metrics of all blobs."""


class GetReusableBytes(Command[int | None], frozen=True, kw_only=True):
    """Return how many bytes the database can store without growing on disk, or `None` if its disk is not ours."""


class ObjectWriter(Protocol):
    """A writer of one object. Used by one task at a time. `offset` is the number of bytes written so far."""

    offset: int

    async def write(self, data: bytes) -> None:
        """Append bytes. Raises `StorageFull` or `StoreError`."""

    async def sync(self) -> None:
        """Make the bytes written so far durable, if the store can `resume` them."""

    async def finish(self) -> None:
        """Complete the object and make it durable."""

    async def abort(self) -> None:
        """Stop writing. Written bytes may stay until the object is deleted through the trash."""


class ObjectStore(Protocol):
    """A store of objects under storage keys, each written once. Safe to use from many tasks at once."""

    store_id: str  # Unique among all stores.
    is_exclusive: bool  # Whether only one process at a time can have the store open.

    def new_storage_key(self) -> str:
        """Create a storage key that has never been used."""

    def check_free_space(self, size: int) -> None:
        """Raise `StorageFull` if `size` more bytes do not fit now. Does not block.

        Also called for bytes that go to the database, which may be on the same disk. Deletions do not call it.
        """

    async def write(self, storage_key: str, *, size: int | None) -> ObjectWriter:
        """Begin an object of `size` bytes, or of unknown size. Raises `StorageFull` before any byte is written."""

    async def resume(self, storage_key: str, *, offset: int) -> ObjectWriter:
        """Continue an unfinished object after its first `offset` bytes, which were synced.

        Writes of an earlier writer no longer reach the object. Raises `StoreError` if these bytes are not there. A
        store to which clients send bytes directly keeps nothing of an unfinished object and always raises it: clients
        resume such an upload with signed parts.
        """

    def read(self, storage_key: str, start: int, end: int) -> AsyncGenerator[bytes | memoryview, None]:
        """Yield the bytes from `start` up to `end` in parts of `PART_BYTES`; the last one may be shorter.

        `start` is a multiple of `PART_BYTES`. Raises `BlobDamaged` if the object is missing or shorter. A caller that
        does not read to the end must close the generator.
        """

    def write_memory_bytes(self, size: int | None) -> int:
        """Return how many bytes a writer of an object of this size keeps in memory at most."""

    def read_memory_bytes(self, size: int) -> int:
        """Return how many bytes a reader of this many bytes keeps in memory at most."""

    async def delete(self, trash: TrashedObject) -> None:
        """Delete an object, finished or not. Succeeds if there is none."""

    async def etag(self, storage_key: str) -> str | None:
        """Return the ETag of a finished object, which changes with its bytes, or `None` if the store has no ETags."""

    async def register_owner(self, database: str) -> str:
        """Record `database` as the owner of the objects unless another one is recorded, and return the owner."""

    def list_objects(self) -> AsyncGenerator[tuple[str, int], None]:
        """Yield the storage key and the age in microseconds of every object, finished or not.

        An object that is finished meanwhile may be yielded twice. A caller that does not read to the end must close the
        generator.
        """


class SigningStore(ObjectStore, Protocol):
    """An object store that clients write and read directly, with signed URLs.

    A URL to write is valid for `write_url_seconds`. Until then a client can put an object at its storage key, even if
    an earlier object there has been deleted. `conditional_writes` is true if the store refuses a second object at a
    storage key; otherwise objects of clients must be sealed.
    """

    conditional_writes: bool
    write_url_seconds: int

    async def plan(self, storage_key: str, *, size: int, sha256: str | None) -> TransferPlan:
        """Plan how a client sends an object of this size. Begins a multipart upload for a large one."""

    async def renew_plan(
        self, storage_key: str, multipart: str | None, *, size: int, sha256: str | None
    ) -> TransferPlan:
        """Sign a new plan for an object that was planned before, with the ID of its multipart upload if it has one."""

    async def sign_parts(self, storage_key: str, multipart: str, parts: Sequence[ObjectPart]) -> list[SignedPart]:
        """Sign URLs for these parts."""

    async def list_parts(self, storage_key: str, multipart: str) -> list[ObjectPart]:
        """List the stored parts in order. The list is empty after the object was joined or deleted."""

    async def join_parts(self, storage_key: str, multipart: str, parts: Sequence[ObjectPart]) -> None:
        """Create the object from these parts, which are numbered from 1 without gaps.

        Succeeds if the object was created before. Raises `UploadIncomplete` if a part is missing or has another size or
        digest.
        """

    async def seal(self, storage_key: str) -> str:
        """Copy an object to a new storage key, for which no client has a URL, and return that storage key.

        The copy is verified and kept, because clients can change the original until it is deleted. An object that was
        joined from parts needs no copy: the URLs of its parts stopped working. Raises `UploadIncomplete` if there is no
        object.
        """

    async def describe(self, storage_key: str) -> ObjectDescription | None:
        """Return the size and the ETag of an object, or `None` if there is none."""

    async def sign_read_url(self, storage_key: str, *, seconds: int, content_type: str, disposition: str) -> str:
        """Sign a URL from which the object can be read for `seconds`."""


class ObjectDescription(msgspec.Struct, frozen=True):
    """The size of an object, and its ETag if the store has one."""

    size: int
    etag: str | None


class ObjectPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a multipart upload, counted from 1. Not every store returns the digest."""

    number: int
    size: int
    sha256: str | None = None
    etag: str | None = None


class SignedPart(msgspec.Struct, frozen=True, kw_only=True):
    """The URL to PUT a part to, and the headers to send with it."""

    number: int
    """Number of the part, starting at 1."""
    url: str
    """Signed URL to PUT the part to."""
    headers: dict[str, str]
    """Headers to send with the part."""


class TransferPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How a client sends an object: with one PUT to `url`, or in parts of `part_bytes` of the upload `multipart`."""

    url: str | None = None
    headers: dict[str, str] = {}
    multipart: str | None = None
    part_bytes: int | None = None


class ReferenceSource(Protocol):
    """A source of references to blobs outside the tables of the engine."""

    async def referenced(self, blob_ids: Sequence[str]) -> set[str]:
        """Return those of these blobs that it refers to. An error ends the round of the garbage collector."""
