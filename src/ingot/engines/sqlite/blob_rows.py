"""Rows of blobs, keys, uploads and files as Python objects."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ingot.blobs.model import Content, Key, UploadState
from ingot.engines.uploads import UploadFields
from ingot.kernel.clock import to_datetime

WHOLE_TENANT: Final = ""  # The owner under which the usage of the whole tenant is counted.


class StorageUsage(msgspec.Struct, frozen=True, gc=False):
    """The usage of an owner, or a change of it: bytes, reserved bytes, keys, bytes of these keys, deleted bytes."""

    bytes: int = 0
    reserved: int = 0
    keys: int = 0
    key_bytes: int = 0
    deleted: int = 0

    @property
    def total(self) -> int:
        """The bytes that count against a quota."""
        return self.bytes + self.reserved + self.deleted

    def __add__(self, other: StorageUsage) -> StorageUsage:
        return StorageUsage(
            self.bytes + other.bytes,
            self.reserved + other.reserved,
            self.keys + other.keys,
            self.key_bytes + other.key_bytes,
            self.deleted + other.deleted,
        )

    def __neg__(self) -> StorageUsage:
        return StorageUsage(-self.bytes, -self.reserved, -self.keys, -self.key_bytes, -self.deleted)


class BlobRow(msgspec.Struct, array_like=True, gc=False):
    """The columns of a row of `blobs` that commands need."""

    number: int
    tenant: str
    id: str
    size: int
    storage_key: str | None
    damaged: bool
    sent_until: int = 0
    deleted_by: str | None = None  # The owner of its last reference, if it has none any more.


class TombstoneRow(msgspec.Struct, array_like=True, gc=False):
    """When a blob was deleted, and whose deleted bytes it counts as. The tenant is `None` if it was removed."""

    at: int
    tenant: str | None
    owner: str
    size: int


class TrashRow(msgspec.Struct, frozen=True, gc=False):
    """An object to delete, and whose deleted bytes it counts as. Clients may send it until `sent_until`."""

    storage_key: str
    multipart: str | None
    tenant: str | None
    owner: str
    size: int
    sent_until: int


class KeyRow(msgspec.Struct, array_like=True, gc=False):
    """A row of `keys` with values of its blob. The fields are in the order of the SQL."""

    tenant: str
    key: str
    blob: int
    blob_id: str
    sha256: str
    size: int
    content_type: str
    original_name: str | None
    owner: str
    uploaded_at: int
    upload: str

    def as_key(self) -> Key:
        """Build the key as callers get it."""
        return Key(
            key=self.key,
            blob_id=self.blob_id,
            sha256=self.sha256,
            size=self.size,
            content_type=self.content_type,
            original_name=self.original_name,
            uploaded_at=to_datetime(self.uploaded_at),
            owner=self.owner,
        )


class SQLiteUploadRow(UploadFields, array_like=True, gc=False):
    """A row of `uploads`. The fields are in the order of the SQL."""

    @property
    def is_active(self) -> bool:
        """Whether the upload is open or verifying."""
        return self.state in (UploadState.OPEN, UploadState.VERIFYING)

    @property
    def owns_blob(self) -> bool:
        """Whether the upload is done and no key or job file took over its reference to the blob."""
        return self.state is UploadState.DONE and self.key is None and self.file in (None, "output")

    @property
    def references_blob(self) -> bool:
        """Whether the upload is a reference to its blob."""
        return self.is_active or self.owns_blob

    def sent_until(self, now: int) -> int:
        """Return until when a client may send the object of the upload, if the upload ends now; 0 if no client can."""
        return now + self.url_lifetime if self.url_lifetime else 0

    @property
    def usage(self) -> StorageUsage:
        """The usage of the upload: its reservation, or the size of the blob that it owns."""
        if self.owns_blob:
            return StorageUsage(bytes=self.size or 0)
        return StorageUsage(reserved=self.reserved)


class FileRow(msgspec.Struct, array_like=True, gc=False):
    """An existing file of a job, with its owner and size."""

    job: int
    kind: str
    name: str
    owner: str
    blob: int
    blob_id: str
    size: int


class ProducedFileRow(msgspec.Struct, array_like=True, gc=False):
    """An output or a checkpoint of a job, with its owner and size."""

    job: int
    owner: str
    blob: int
    size: int


class OutputRow(msgspec.Struct, array_like=True, gc=False):
    """A finished upload of an output, with the numbers of its job and its tenant."""

    job: int
    tenant: int
    id: str
    name: str
    blob: int
    blob_id: str
    size: int
    content_type: str
    owner: str
    fence: int


def content_of(row: tuple[Any, ...]) -> Content:
    """Build the content of a blob from its row."""
    id, sha256, size, storage_key, damaged, inline, part_checksums, tenant, etag = row
    return Content(
        id=id,
        sha256=sha256,
        size=size,
        storage_key=storage_key,
        inline=inline,
        part_checksums=part_checksums or b"",
        damaged=bool(damaged),
        tenant=tenant,
        etag=etag,
    )
