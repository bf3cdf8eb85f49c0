"""Rows about blobs, as Python sees them."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from ingot.blobs.model import Content, FileKind, Finished, Key, OpenUpload, Reference, Upload, UploadState
from ingot.engines.postgres.connection import Record
from ingot.kernel.clock import to_datetime, to_datetime_or_none

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def digest_of(blob_id: str) -> bytes | None:
    """The digest that an id stands for, or `None` for what is none."""
    return bytes.fromhex(blob_id) if _DIGEST.fullmatch(blob_id) else None


def _hex(text: str | None) -> str | None:
    """Raw bytes as they stand in JSON, without what is before them."""
    return None if text is None else text.removeprefix("\\x")


class UploadRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `uploads`, as JSON has it."""

    tenant: str
    id: str
    state: UploadState
    epoch: int
    owner: str
    reserved: int
    received: int
    size: int | None
    blob: str | None
    sha256: str | None
    content_type: str
    original_name: str | None
    key: str | None
    if_match: str | None
    job: str | None
    fence: int | None
    file: FileKind | None
    name: str | None
    place: str | None
    multipart: str | None
    error: str | None
    created_at: int
    expires_at: int
    done_at: int | None

    @classmethod
    def read(cls, text: str) -> UploadRow:
        """The row from its text."""
        return msgspec.json.decode(text, type=cls)

    def upload(self) -> Upload:
        """The upload for people."""
        return Upload(
            id=self.id,
            state=self.state,
            size=self.size,
            received=self.received,
            blob_id=_hex(self.blob),
            sha256=_hex(self.sha256),
            content_type=self.content_type,
            original_name=self.original_name,
            key=self.key,
            job_id=self.job,
            file=self.file,
            name=self.name,
            error=self.error,
            owner=self.owner,
            created_at=to_datetime(self.created_at),
            expires_at=to_datetime(self.expires_at),
        )

    def open_upload(self) -> OpenUpload:
        """The upload for the room."""
        return OpenUpload(
            upload=self.upload(),
            tenant=self.tenant,
            epoch=self.epoch,
            reserved=self.reserved,
            place=self.place,
            multipart=self.multipart,
            if_match=self.if_match,
            fence=self.fence,
        )

    def finished(self) -> Finished:
        """One that is done, with its key as it was set: that may be gone since, or be another blob's."""
        upload = self.upload()
        if upload.key is None:
            return Finished(upload=upload)
        assert upload.blob_id is not None, "one that is done knows its blob"
        assert upload.sha256 is not None, "one that is done knows its blob"
        key = Key(
            key=upload.key,
            blob_id=upload.blob_id,
            sha256=upload.sha256,
            size=upload.size or 0,
            content_type=upload.content_type,
            original_name=upload.original_name,
            uploaded_at=to_datetime(self.done_at or 0),
            owner=upload.owner,
        )
        return Finished(upload=upload, key=key)


class ReferenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """Something that refers to a blob, as JSON has it."""

    kind: Any
    name: str
    job_id: str | None
    job_type: str | None
    since: int | None

    def reference(self) -> Reference:
        """The reference for people."""
        return Reference(
            kind=self.kind,
            name=self.name,
            job_id=self.job_id,
            job_type=self.job_type,
            since=to_datetime_or_none(self.since),
        )


def key_of(row: Record, key: str) -> Key:
    """A key from a row that has its columns."""
    return Key(
        key=key,
        blob_id=row["blob"].hex(),
        sha256=row["sha256"].hex(),
        size=row["size"],
        content_type=row["content_type"],
        original_name=row["original_name"],
        uploaded_at=to_datetime(row["uploaded_at"]),
        owner=row["owner"],
    )


def content_of(row: Record) -> Content:
    """The bytes of a blob, or where they are, from a row that has them."""
    return Content(
        id=row["digest"].hex(),
        sha256=row["sha256"].hex(),
        size=row["size"],
        place=row["place"],
        inline=row["inline"],
        checks=row["checks"],
        damaged=row["damaged"],
    )
