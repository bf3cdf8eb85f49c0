"""What the blobs room asks of an engine, and of an object store.

Bytes are always safe in the object store before a command names them.

**Who refers to a blob keeps it:** a key, an upload that is not swept, a file of a job. When a reference goes, it leaves
a tombstone with the time. A blob is collected when nothing refers to it and its youngest tombstone is older than the
grace. Its object then goes to the trash in the same transaction, is deleted afterwards, and its place is never used
again, so that nothing that comes later can be hit by it.

**Usage** of a tenant, and of each owner in it, is the sum of the sizes of all that its keys, job files and done uploads
without either refer to, plus what open uploads have reserved; each reference counts, also to the same blob. The quota
of a tenant is in its limits; that of a token is told with the command (`owner_quota`). A command that would exceed
either raises `QuotaExceeded`, and one that goes from below to or above 80 % of one emits `quota.warning`.
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
    TrashedObject,
    Usage,
)
from ingot.events.audit import Act
from ingot.kernel.commands import Command
from ingot.kernel.content_types import BINARY_CONTENT_TYPE


class BeginUpload(Command[StoredUpload], frozen=True, kw_only=True):
    """Take in a blob. `id` is made by the caller; the same id again answers with the upload that is there.

    `reserve` bytes are set aside for it. It expires after `lifetime` microseconds without progress. `storage_key` names
    the object in the store with the ID `store_id`.

    Begin an upload, and reserve its bytes.

    Raises `QuotaExceeded`, `TenantNotFound`; `KeyExists` or `KeyChanged` when its key could not be set now. One for
    a job raises `LeaseLost` unless the job runs in this tenant under this fence. `ObjectsElsewhere` when the
    objects are in another store by now: a server that was opened later has it.
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


class TakeOverUpload(Command[StoredUpload], frozen=True, kw_only=True):
    """Give an open upload the next epoch, which begins with 1: whoever wrote before is fenced out.

    Raises `UploadNotFound`, or `UploadEnded` unless it is open.
    """

    tenant: str
    id: str


class RecordUploadProgress(Command[StoredUpload], frozen=True, kw_only=True):
    """So much of it is safely here; it lives on for `lifetime`. With `reserved`, so much is set aside from now on.

    With a digest, that is announced from now on. With `verifying` no more bytes come.

    Keep what is known of it. Raises `UploadNotFound`, `UploadEnded`, `UploadTaken` for an older epoch, or
    `QuotaExceeded`; of a reservation that becomes smaller the rest is given back.
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
    """Store the blob whose bytes are here and were read. With an `epoch` only its writer may say so.

    The blob is then under the key or with the job that the upload was for, and there is an event `blob.stored`.

    What was reserved becomes what is used: exactly the size. Bytes that are here already, whoever's they are, stay
    where they are, and the new object goes to the trash; unless those are damaged: then the new one takes their
    place, and they go. Content without a place and without bytes stands for a blob that is here: `BlobNotFound`
    when it is not. An object that the upload had and the content does not name goes to the trash.

    Done again with the same bytes it answers the same; with others `UploadEnded`. Raises `UploadNotFound`,
    `UploadTaken`, `KeyExists`, `KeyChanged`, `QuotaExceeded`, or `LeaseLost`: then the upload is still what it
    was. An output of a job stays the upload's until the attempt under its fence has succeeded.
    """

    tenant: str
    id: str
    content: Content
    lifetime: int
    epoch: int | None = None
    owner_quota: int | None = None


class EndUpload(Command[None], frozen=True, kw_only=True):
    """End an upload that is not done: its reservation is given back once, and its object goes to the trash.

    With an `error` it failed, and is kept for `lifetime`; without it is given up, and gone.

    One that is done, or is not there, stays as it is.
    """

    tenant: str
    id: str
    error: str | None = None
    lifetime: int = 0


class PutBlob(Command[Key], frozen=True, kw_only=True):
    """Store a small blob under a key: `BeginUpload` and `FinishUpload` as one, of which no upload is left.

    Raises what they do. `id` is that of an upload nobody needs to know of.

    The same `id` under the same key with the same bytes again, as after an unknown outcome, answers the same.
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
    """Delete a key, give back its bytes, leave a tombstone, emit `blob.deleted`.

    With `if_match` only while it is that of this blob.

    Raises `KeyNotFound` or `KeyChanged`. The key can be set again at once.
    """

    tenant: str
    key: str
    if_match: str | None = None


class PurgeKeys(Command[PurgeResult], frozen=True, kw_only=True):
    """Delete up to `limit` keys that this owner set, as `DeleteKey` does; of all owners with `None`.

    It is on record as `keys.purged`. `more` when there may be more.

    Raises `TenantNotFound`.
    """

    tenant: str
    owner: str | None
    limit: int
    act: Act


class SweepUploads(Command[int], frozen=True, kw_only=True):
    """End up to `limit` uploads whose time is over, or whose attempt runs no more, and answer how many.

    They end as with `EndUpload`; those that ended before are dropped.

    A done one is dropped with its reference, when its time is over, and leaves a tombstone. What is done for an
    attempt stays for as long as that runs.
    """

    limit: int


class CollectBlob(Command[int | None], frozen=True, kw_only=True):
    """Take this blob away unless something refers to it; `grace` microseconds after the last reference went.

    With `dry_run` nothing is changed, and only told what would be.

    Take a blob away; answers its size, or `None` when it stays. Its tombstones are looked at in the same
    transaction: those of a blob that is gone, or that something refers to again, go.
    """

    blob_id: str
    grace: int
    dry_run: bool = False


class ForgetTrash(Command[None], frozen=True, kw_only=True):
    """Forget the objects at these places: they are deleted."""

    storage_keys: Sequence[str]


class RecordScrub(Command[None], frozen=True, kw_only=True):
    """These blobs were read whole: their bytes were right, or not.

    Each comes with the place where it was read, which is `None` for bytes that are in the database.

    Keep when blobs were last read whole, and which are damaged.

    A blob that is elsewhere by now, or gone, stays as it is: what is there was not read.
    """

    whole: Sequence[tuple[str, str | None]] = ()
    damaged: Sequence[tuple[str, str | None]] = ()


class RegisterObjectStore(Command[StoreIdentity], frozen=True, kw_only=True):
    """Remember the id of the object store, unless there are objects in another one, and answer which it is.

    The name of the database is made here, the first time, and is no other database's.
    """

    store_id: str


class GetKey(Command[Key | None], frozen=True, kw_only=True):
    """The key with this name, or `None`."""

    tenant: str
    key: str


class OpenKey(Command[tuple[Key, Content] | None], frozen=True, kw_only=True):
    """The key with this name, and its bytes or where they are, as of one moment; or `None`."""

    tenant: str
    key: str


class ListKeys(Command[list[Key]], frozen=True, kw_only=True):
    """Keys that begin with a prefix, in the order of their UTF-8 bytes, behind `after`.

    Costs the same whatever else there is.
    """

    tenant: str
    prefix: str
    after: str
    limit: int


class FindBlob(Command[tuple[Content, list[Reference]] | None], frozen=True, kw_only=True):
    """A blob that something in sight in this tenant refers to, and up to 100 of those references; else `None`.

    Files of an attempt that is not complete, and uploads that are not done, do not count.
    """

    tenant: str
    blob_id: str
    scope: BlobScope = FULL_SCOPE


class GetUpload(Command[StoredUpload | None], frozen=True, kw_only=True):
    """The upload with this id, or `None`."""

    tenant: str
    id: str


class ListVerifyingUploads(Command[list[StoredUpload]], frozen=True, kw_only=True):
    """Uploads whose bytes are to be read back, those that wait for longest first."""

    limit: int


class GetUsage(Command[Usage], frozen=True, kw_only=True):
    """What a tenant uses, or one owner in it; for an owner without its quota.

    One that is not there, or was removed, uses nothing.
    """

    tenant: str
    owner: str | None = None


class PreviewPurge(Command[PurgeResult], frozen=True, kw_only=True):
    """How many keys a purge would delete in all, and their bytes."""

    tenant: str
    owner: str | None


class ListTombstonedBlobs(Command[list[str]], frozen=True, kw_only=True):
    """Blobs with a tombstone older than the grace, oldest first, whether something refers to them or not.

    Those behind the blob `after`; all, when that has no tombstone any more.
    """

    grace: int
    limit: int
    after: str | None = None


class ListTrash(Command[list[TrashedObject]], frozen=True, kw_only=True):
    """Objects to delete, in the order of their places, behind `after`."""

    limit: int
    after: str = ""


class FindKnownStorageKeys(Command[set[str]], frozen=True, kw_only=True):
    """Those of these places that a blob, an upload or the trash names, as of one moment."""

    storage_keys: Sequence[str]


class ListBlobsToScrub(Command[list[Content]], frozen=True, kw_only=True):
    """Blobs that were last read whole, or stored, before this time, those that wait for longest first."""

    before: int
    limit: int


class GetBlobMetrics(Command[BlobMetrics], frozen=True, kw_only=True):
    """How things stand with all blobs."""


class GetReusableBytes(Command[int | None], frozen=True, kw_only=True):
    """How much the database can take in without more of its disk; `None` when it is on no disk of ours."""


class ObjectWriter(Protocol):
    """An object on its way in. Used by one task at a time."""

    offset: int

    async def write(self, data: bytes) -> None:
        """Append bytes. Raises `StorageFull` or `StoreError`."""

    async def sync(self) -> None:
        """What was written so far survives power loss when this returns, where the store can `resume`."""

    async def finish(self) -> None:
        """The object is there, whole and durable, when this returns."""

    async def abort(self) -> None:
        """Stop. What was written may stay, for the trash."""


class ObjectStore(Protocol):
    """Where bytes are kept, under places that are written once. Safe to call from many tasks at once."""

    store_id: str  # No other store has it.

    def new_storage_key(self) -> str:
        """A place that was never used."""

    def check_free_space(self, size: int) -> None:
        """Raises `StorageFull` when so many bytes would not be taken now. It never waits.

        Asked for what goes to the database too, which may be on the same disk. What frees bytes never asks.
        """

    async def write(self, storage_key: str, *, size: int | None) -> ObjectWriter:
        """Begin an object, of so many bytes when that is known. Raises `StorageFull` before anything is sent."""

    async def resume(self, storage_key: str, *, offset: int) -> ObjectWriter:
        """Go on with one that was begun and not finished, behind its first `offset` bytes, which were synced.

        What an earlier writer still sends does not get into it. Raises `StoreError` where these bytes are not there. A
        store whose clients write by themselves keeps nothing of an object that was not finished, and always raises it:
        there, what is to go on goes in signed parts.
        """

    def read(self, storage_key: str, start: int, end: int) -> AsyncGenerator[bytes | memoryview, None]:
        """The bytes from `start` up to `end`, in parts of `PART_BYTES`, that begin at a multiple of it.

        `start` is such a multiple. Raises `BlobDamaged` when the object is not there, or is shorter. Who does not read
        to the end closes it.
        """

    async def delete(self, trash: TrashedObject) -> None:
        """Delete an object, and what an unfinished one has left. One that is not there is deleted already."""

    async def register_owner(self, database: str) -> str:
        """Remember that the objects are this database's, unless they are another's already; answers whose they are."""

    def list_objects(self) -> AsyncGenerator[tuple[str, int], None]:
        """Every place that has an object, or what there is of one, and how old that is, in microseconds.

        One that is finished meanwhile may come twice. Who does not read to the end closes it.
        """


class SigningStore(ObjectStore, Protocol):
    """A store that lets clients write and read by themselves, with addresses that we sign.

    An address to write is good for `write_seconds`: as long as that after it was given, a client can still put an
    object at its place, also when one that was there has been deleted.
    """

    conditional_writes: (
        bool  # Whether the store refuses a second object at a place. Where not, `seal` what a client put.
    )
    write_url_seconds: int

    async def plan(self, storage_key: str, *, size: int, sha256: str | None) -> TransferPlan:
        """How a client sends an object of this size."""

    async def renew_plan(
        self, storage_key: str, multipart: str | None, *, size: int, sha256: str | None
    ) -> TransferPlan:
        """The same once more, for an object that was planned before, under this id when it goes in parts."""

    async def sign_parts(self, storage_key: str, multipart: str, parts: Sequence[ObjectPart]) -> list[SignedPart]:
        """Addresses for these parts."""

    async def list_parts(self, storage_key: str, multipart: str) -> list[ObjectPart]:
        """The parts that are there, in order; none of an object that was joined or deleted."""

    async def join_parts(self, storage_key: str, multipart: str, parts: Sequence[ObjectPart]) -> None:
        """Make the object of these parts, numbered from 1 without a gap.

        Raises `UploadIncomplete` when one is not there, or has another size or digest; done before, it is fine.
        """

    async def seal(self, storage_key: str) -> str:
        """Copy an object to a place that no client has an address to write to, and answer that place.

        The copy is what is read back and kept, not the object: that one may change until it is deleted. One that was
        joined of parts needs no copy, because the addresses of its parts end with it. Raises `UploadIncomplete` when
        there is no object.
        """

    async def object_size(self, storage_key: str) -> int | None:
        """The size of an object, or `None`."""

    async def sign_read_url(self, storage_key: str, *, seconds: int, content_type: str, disposition: str) -> str:
        """An address where the object can be read for so long."""


class ObjectPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an object that goes to a store in several, counted from 1. A store may not tell the digest."""

    number: int
    size: int
    sha256: str | None = None
    etag: str | None = None


class SignedPart(msgspec.Struct, frozen=True, kw_only=True):
    """Where to PUT a part, with these headers."""

    number: int
    """Number of the part, starting at 1."""
    url: str
    """Signed URL to PUT the part to."""
    headers: dict[str, str]
    """Headers to send with the part."""


class TransferPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How an object is sent: with one PUT to `url`, or in parts of `part_bytes` under `multipart`."""

    url: str | None = None
    headers: dict[str, str] = {}
    multipart: str | None = None
    part_bytes: int | None = None


class ReferenceSource(Protocol):
    """What keeps blobs outside of the engine's own tables."""

    async def referenced(self, blob_ids: Sequence[str]) -> set[str]:
        """Those of these blobs that it keeps. What it raises ends the round: nothing is collected then."""
