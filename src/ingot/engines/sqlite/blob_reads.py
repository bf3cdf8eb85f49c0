"""Queries for keys, blobs, references and usage, and for what the garbage collector and the scrub have to process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from ingot.blobs import ports
from ingot.blobs.model import (
    BlobMetrics,
    Content,
    FreedTimes,
    Key,
    PurgeResult,
    Reference,
    TombstonedBlob,
    TrashedObject,
    Usage,
)
from ingot.engines.sqlite.blob_rows import WHOLE_TENANT, KeyRow, StorageUsage, content_of
from ingot.engines.sqlite.quota import grace_micros
from ingot.engines.sqlite.readers import Reader
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import as_json

REFERENCES_MAX: Final = 100
NO_TENANT: Final = 0  # No tenant has this number.
METRIC_ROWS_MAX: Final = 10_000  # Rows that have no stored total are only counted up to this number.
ABOVE_ALL_KEYS: Final = b""  # SQLite sorts every BLOB value after every text.


def get_key(reader: Reader, command: ports.GetKey) -> Key | None:
    """Find a key."""
    row = _find_key(reader, command)
    return None if row is None else row.as_key()


def open_key(reader: Reader, command: ports.OpenKey) -> tuple[Key, Content] | None:
    """Find a key with the content of its blob."""
    with reader.snapshot():
        row = _find_key(reader, command)
        tenant = reader.writer_state.number_of(command.tenant)
        content = None if row is None else find_content(reader, tenant, bytes.fromhex(row.blob_id))
    return None if row is None or content is None else (row.as_key(), content)


def _find_key(reader: Reader, command: ports.GetKey | ports.OpenKey) -> KeyRow | None:
    key_names = as_json([(reader.writer_state.number_of(command.tenant), command.key)])
    rows = reader.read(list[KeyRow], SQL.keys_by_name, key_names)
    return rows[0] if rows else None


def find_content(reader: Reader, holder: int | None, id: bytes) -> Content | None:
    """Find the content of a blob of a tenant."""
    row = reader.execute(SQL.content_of_blob, holder, id).fetchone()
    return None if row is None else content_of(row)


def list_keys(reader: Reader, command: ports.ListKeys) -> list[Key]:
    """Read a page of the keys with a prefix."""
    prefix, after = command.prefix, command.after
    first = max(prefix, f"{after}\x00") if after else prefix  # The smallest text after `after`.
    values = (reader.writer_state.number_of(command.tenant), first, _prefix_end(prefix), command.limit)
    return [row.as_key() for row in reader.read(list[KeyRow], SQL.page_of_keys, *values)]


def find_blob(reader: Reader, command: ports.FindBlob) -> tuple[Content, list[Reference]] | None:
    """Find a blob with the references in a tenant that the caller may see."""
    tenant, id, scope = reader.writer_state.number_of(command.tenant), bytes.fromhex(command.blob_id), command.scope
    keys, types = (None if names is None else as_json(names) for names in (scope.keys, scope.types))
    with reader.snapshot():
        number = reader.execute(SQL.number_of_blob, tenant, id).get
        values = number, id, tenant, REFERENCES_MAX, keys, scope.uploads, types, scope.owner, scope.job_id
        references = reader.read(list[Reference], SQL.references_in_tenant, *values)
        content = find_content(reader, tenant, id) if references else None
    return None if content is None else (content, references)


def get_usage(reader: Reader, command: ports.GetUsage) -> Usage:
    """Read the usage of a tenant, or of one owner in it."""
    limits = reader.writer_state.limits.get(command.tenant)
    quota = limits.quota_bytes if limits is not None and command.owner is None else None
    tenant, now = reader.writer_state.tenants.get(command.tenant, NO_TENANT), reader.clock.micros()
    with reader.snapshot():
        usage = _read_usage(reader, tenant, command.owner)
        freed = reader.read(FreedTimes, SQL.deleted_until, tenant, grace_micros(reader)) if usage.deleted else None
    return Usage(
        bytes=usage.bytes,
        reserved_bytes=usage.reserved,
        deleted_bytes=usage.deleted,
        freed_from=None if freed is None else freed.freed_from(now),
        freed_by=None if freed is None else freed.freed_by(now),
        keys=usage.keys,
        quota_bytes=quota,
    )


def preview_purge(reader: Reader, command: ports.PreviewPurge) -> PurgeResult:
    """Count what a purge would delete."""
    usage = _read_usage(reader, reader.writer_state.number_of(command.tenant), command.owner)
    return PurgeResult(keys=usage.keys, bytes=usage.key_bytes, dry_run=True)


def _read_usage(reader: Reader, tenant: int, owner: str | None) -> StorageUsage:
    row = reader.execute(SQL.usage_of_owner, tenant, WHOLE_TENANT if owner is None else owner).fetchone()
    return StorageUsage() if row is None else StorageUsage(*row)


def list_tombstoned_blobs(reader: Reader, command: ports.ListTombstonedBlobs) -> list[TombstonedBlob]:
    """Read the blobs whose tombstones are old enough."""
    placed_before, after = reader.clock.micros() - command.grace, command.after
    holder = None if after is None else holder_number(reader.writer_state.tenant_numbers, after.holder)
    values = placed_before, command.limit, holder, None if after is None else bytes.fromhex(after.blob_id)
    return reader.read(list[TombstonedBlob], SQL.tombstoned_blobs, *values)


def holder_number(tenant_numbers: Mapping[str, int], holder: str) -> int:
    """Return the number of the holder of a blob. The name of one that was removed is its number."""
    return tenant_numbers[holder] if holder in tenant_numbers else int(holder)


def list_trash(reader: Reader, command: ports.ListTrash) -> list[TrashedObject]:
    """Read a page of the objects to delete."""
    return reader.read(list[TrashedObject], SQL.page_of_trash, command.limit, command.after, reader.clock.micros())


def find_known_storage_keys(reader: Reader, command: ports.FindKnownStorageKeys) -> set[str]:
    """Return the storage keys that occur in a row of blobs, uploads or trash."""
    return reader.read(set[str], SQL.known_storage_keys, as_json(command.storage_keys))


def list_blobs_to_scrub(reader: Reader, command: ports.ListBlobsToScrub) -> list[Content]:
    """Read the contents of the blobs that must be scrubbed."""
    return [content_of(row) for row in reader.execute(SQL.contents_to_scrub, command.before, command.limit).fetchall()]


def get_blob_metrics(reader: Reader, _: ports.GetBlobMetrics) -> BlobMetrics:
    """Read the metrics of all blobs."""
    metrics, now = reader.read(BlobMetrics, SQL.blob_metrics, METRIC_ROWS_MAX), reader.clock.micros()
    if not metrics.deleted_bytes:
        return metrics
    freed = reader.read(FreedTimes, SQL.all_deleted_until, grace_micros(reader))
    return msgspec.structs.replace(metrics, freed_from=freed.freed_from(now), freed_by=freed.freed_by(now))


def get_reusable_bytes(reader: Reader, _: ports.GetReusableBytes) -> int | None:
    """Return how many bytes of the database file are free and can be reused."""
    return reader.read(tuple[int], SQL.reusable_bytes)[0]


def _prefix_end(prefix: str) -> str | bytes:
    """Return the first text after all texts with this prefix. UTF-8 sorts in the order of code points."""
    stem = prefix.rstrip("\U0010ffff")
    if not stem:
        return ABOVE_ALL_KEYS
    last = ord(stem[-1])
    return stem[:-1] + chr(0xE000 if last == 0xD7FF else last + 1)  # Surrogates are not characters.
