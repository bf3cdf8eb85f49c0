"""Reading about blobs: keys, who refers to what, and what is to be done."""

from __future__ import annotations

from typing import Final

from ingot.blobs import ports
from ingot.blobs.model import BlobMetrics, Content, Key, PurgeResult, Reference, TrashedObject, Usage
from ingot.engines.sqlite.blob_rows import WHOLE_TENANT, KeyRow, StorageUsage, content_of
from ingot.engines.sqlite.readers import Reader
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import as_json

REFERENCES_MAX: Final = 100
NO_TENANT: Final = 0  # No tenant has this number.
METRIC_ROWS_MAX: Final = 10_000  # What is not counted as it changes is counted up to here.
ABOVE_ALL_KEYS: Final = b""  # SQLite sorts every blob behind every text.


def get_key(reader: Reader, command: ports.GetKey) -> Key | None:
    """Find a key."""
    row = _find_key(reader, command)
    return None if row is None else row.as_key()


def open_key(reader: Reader, command: ports.OpenKey) -> tuple[Key, Content] | None:
    """Find a key, and its bytes or where they are."""
    with reader.snapshot():  # One for the key and its bytes.
        row = _find_key(reader, command)
        content = None if row is None else find_content(reader, bytes.fromhex(row.blob_id))
    return None if row is None or content is None else (row.as_key(), content)


def _find_key(reader: Reader, command: ports.GetKey | ports.OpenKey) -> KeyRow | None:
    asked = as_json([(reader.writer_state.number_of(command.tenant), command.key)])
    rows = reader.read(list[KeyRow], SQL.keys_by_name, asked)
    return rows[0] if rows else None


def find_content(reader: Reader, id: bytes) -> Content | None:
    """Find the bytes of a blob, or where they are."""
    row = reader.execute(SQL.content_of_blob, id).fetchone()
    return None if row is None else content_of(row)


def list_keys(reader: Reader, command: ports.ListKeys) -> list[Key]:
    """Read a page of the keys with a prefix."""
    prefix, after = command.prefix, command.after
    first = max(prefix, f"{after}\x00") if after else prefix  # The next text there can be behind `after`.
    values = (reader.writer_state.number_of(command.tenant), first, _prefix_end(prefix), command.limit)
    return [row.as_key() for row in reader.read(list[KeyRow], SQL.page_of_keys, *values)]


def find_blob(reader: Reader, command: ports.FindBlob) -> tuple[Content, list[Reference]] | None:
    """Find a blob that a tenant refers to, and what refers to it there."""
    tenant, id, sight = reader.writer_state.number_of(command.tenant), bytes.fromhex(command.blob_id), command.scope
    keys, types = (None if names is None else as_json(names) for names in (sight.keys, sight.types))
    with reader.snapshot():  # One for the blob and who refers to it.
        number = reader.execute(SQL.number_of_blob, id).get
        asked = number, id, tenant, REFERENCES_MAX, keys, sight.uploads, types
        references = reader.read(list[Reference], SQL.references_in_tenant, *asked)
        content = find_content(reader, id) if references else None
    return None if content is None else (content, references)


def get_usage(reader: Reader, command: ports.GetUsage) -> Usage:
    """Read what a tenant uses, or one owner in it."""
    limits = reader.writer_state.limits.get(command.tenant)
    quota = limits.quota_bytes if limits is not None and command.owner is None else None
    kept = _read_usage(reader, reader.writer_state.tenants.get(command.tenant, NO_TENANT), command.owner)
    return Usage(bytes=kept.bytes, reserved_bytes=kept.reserved, keys=kept.keys, quota_bytes=quota)


def preview_purge(reader: Reader, command: ports.PreviewPurge) -> PurgeResult:
    """Count what a purge would delete."""
    kept = _read_usage(reader, reader.writer_state.number_of(command.tenant), command.owner)
    return PurgeResult(keys=kept.keys, bytes=kept.key_bytes, dry_run=True)


def _read_usage(reader: Reader, tenant: int, owner: str | None) -> StorageUsage:
    row = reader.execute(SQL.usage_of_owner, tenant, WHOLE_TENANT if owner is None else owner).fetchone()
    return StorageUsage() if row is None else StorageUsage(*row)


def list_tombstoned_blobs(reader: Reader, command: ports.ListTombstonedBlobs) -> list[str]:
    """Read which blobs have had a tombstone for long enough."""
    until = reader.clock.micros() - command.grace
    passed = None if command.after is None else bytes.fromhex(command.after)
    return reader.read(list[str], SQL.tombstoned_blobs, until, command.limit, passed)


def list_trash(reader: Reader, command: ports.ListTrash) -> list[TrashedObject]:
    """Read a page of the objects to delete."""
    return reader.read(list[TrashedObject], SQL.page_of_trash, command.limit, command.after)


def known_storage_keys(reader: Reader, command: ports.FindKnownStorageKeys) -> set[str]:
    """Find those of some places that something names."""
    return reader.read(set[str], SQL.known_storage_keys, as_json(command.storage_keys))


def list_to_scrub(reader: Reader, command: ports.ListBlobsToScrub) -> list[Content]:
    """Read which blobs are to be read whole again."""
    return [content_of(row) for row in reader.execute(SQL.contents_to_scrub, command.before, command.limit).fetchall()]


def get_blob_metrics(reader: Reader, _: ports.GetBlobMetrics) -> BlobMetrics:
    """Count all blobs, and what is to be done about them."""
    return reader.read(BlobMetrics, SQL.blob_metrics, METRIC_ROWS_MAX)


def get_reusable_bytes(reader: Reader, _: ports.GetReusableBytes) -> int | None:
    """Read how much of the file is free."""
    return reader.read(tuple[int], SQL.reusable_bytes)[0]


def _prefix_end(prefix: str) -> str | bytes:
    """The least of all texts that come behind those with this prefix; UTF-8 sorts as code points do."""
    stem = prefix.rstrip("\U0010ffff")
    if not stem:
        return ABOVE_ALL_KEYS
    last = ord(stem[-1])
    return stem[:-1] + chr(0xE000 if last == 0xD7FF else last + 1)  # Between those are no characters.
