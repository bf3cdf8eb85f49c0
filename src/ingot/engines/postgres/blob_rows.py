"""Conversion of rows about blobs, keys and uploads."""

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
    """Return the digest in a blob ID, or `None` if the text is not a blob ID."""
    return bytes.fromhex(blob_id) if _DIGEST.fullmatch(blob_id) else None


def read_upload(text: str) -> UploadFields:
    """Decode the row of an upload from JSON text."""
    row = msgspec.json.decode(text)
    renamed_columns = {
        "blob_id": _digits_of(row["blob"]),
        "sha256": _digits_of(row["sha256"]),
        "job_id": row["job"],
        "storage_key": row["place"],
    }
    return msgspec.convert(row | renamed_columns, UploadFields)


def _digits_of(digest: str | None) -> str | None:
    r"""Return the hexadecimal digits of a digest without the prefix `\x` that PostgreSQL writes in JSON."""
    return None if digest is None else digest.removeprefix("\\x")


def key_of(row: Record, key: str) -> Key:
    """Return the key in a row."""
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
    """Return the content of the blob in a row."""
    return Content(
        id=row["digest"].hex(),
        sha256=row["sha256"].hex(),
        size=row["size"],
        storage_key=row["place"],
        inline=row["inline"],
        part_checksums=row["checks"],
        damaged=row["damaged"],
        tenant=row["blob_holder"],
        etag=row["etag"],
    )
