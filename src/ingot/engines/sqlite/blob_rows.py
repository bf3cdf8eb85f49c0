"""Rows about blobs, as Python sees them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ingot.blobs.model import Content, Key, UploadState
from ingot.engines.uploads import UploadFields
from ingot.kernel.clock import to_datetime

WHOLE_TENANT: Final = ""  # In place of an owner: the whole tenant.


class StorageUsage(msgspec.Struct, frozen=True, gc=False):
    """What an owner keeps, or how much more or less: bytes, those set aside, keys, and the bytes of those keys."""

    bytes: int = 0
    reserved: int = 0
    keys: int = 0
    key_bytes: int = 0

    def __add__(self, other: StorageUsage) -> StorageUsage:
        return StorageUsage(
            self.bytes + other.bytes,
            self.reserved + other.reserved,
            self.keys + other.keys,
            self.key_bytes + other.key_bytes,
        )

    def __neg__(self) -> StorageUsage:
        return StorageUsage(-self.bytes, -self.reserved, -self.keys, -self.key_bytes)


class BlobRow(msgspec.Struct, array_like=True, gc=False):
    """A row of `blobs`, as commands look at it."""

    number: int
    id: str
    size: int
    storage_key: str | None
    damaged: bool


class KeyRow(msgspec.Struct, array_like=True, gc=False):
    """A row of `keys`, with what is told of its blob. The fields stand in the order of the SQL."""

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
        """The key for people."""
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
    """A row of `uploads`. The fields stand in the order of the SQL."""

    @property
    def is_active(self) -> bool:
        """Whether something may still come of it."""
        return self.state in (UploadState.OPEN, UploadState.VERIFYING)

    @property
    def owns_blob(self) -> bool:
        """Whether it is done, and its blob is nobody else's: a key holds its own, and so does a file of a job."""
        return self.state is UploadState.DONE and self.key is None and self.file in (None, "output")

    @property
    def references_blob(self) -> bool:
        """Whether it keeps its blob."""
        return self.is_active or self.owns_blob

    @property
    def usage(self) -> StorageUsage:
        """What it counts for: what is set aside for it, or, when it is done and nothing else does, its blob."""
        if self.owns_blob:
            return StorageUsage(bytes=self.size or 0)
        return StorageUsage(reserved=self.reserved)


class FileRow(msgspec.Struct, array_like=True, gc=False):
    """A file of a job that is there, and what it counts for."""

    job: int
    kind: str
    name: str
    owner: str
    blob: int
    size: int


class ProducedFileRow(msgspec.Struct, array_like=True, gc=False):
    """An output or a checkpoint of a job, and what it counts for."""

    job: int
    owner: str
    blob: int
    size: int


class OutputRow(msgspec.Struct, array_like=True, gc=False):
    """An upload of an output that is done, by the number of its job and that of its tenant."""

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
    """The bytes of a blob, or where they are."""
    id, sha256, size, place, damaged, inline, checks = row
    return Content(
        id=id,
        sha256=sha256,
        size=size,
        storage_key=place,
        inline=inline,
        part_checksums=checks or b"",
        damaged=bool(damaged),
    )
