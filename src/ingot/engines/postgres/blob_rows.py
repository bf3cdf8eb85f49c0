"""Rows about blobs, as Python sees them."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from ingot.blobs.model import Content, Key
from ingot.engines.postgres.connection import Record
from ingot.engines.uploads import UploadFields
from ingot.kernel.clock import to_datetime

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def digest_of(blob_id: str) -> bytes | None:
    """The digest that an id stands for, or `None` for what is none."""
    return bytes.fromhex(blob_id) if _DIGEST.fullmatch(blob_id) else None


def read_upload(text: str) -> UploadFields:
    """An upload from its row as JSON."""
    row = msgspec.json.decode(text)
    renamed = {
        "blob_id": _digits_of(row["blob"]),
        "sha256": _digits_of(row["sha256"]),
        "job_id": row["job"],
        "storage_key": row["place"],
    }
    return msgspec.convert(row | renamed, UploadFields)


def _digits_of(digest: str | None) -> str | None:
    """The hexadecimal digits of a digest, without the mark that stands before them in JSON."""
    return None if digest is None else digest.removeprefix("\\x")


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
        storage_key=row["place"],
        inline=row["inline"],
        part_checksums=row["checks"],
        damaged=row["damaged"],
    )
