"""Reading blobs, keys and uploads, and where objects are."""

from __future__ import annotations

from typing import Final

from ingot.blobs import ports
from ingot.blobs.model import (
    BlobMetrics,
    Content,
    Key,
    PurgeResult,
    Reference,
    StoredUpload,
    StoreIdentity,
    TrashedObject,
    Usage,
)
from ingot.engines.json_rows import decode
from ingot.engines.postgres.blob_rows import content_of, digest_of, key_of, read_upload
from ingot.engines.postgres.connection import Record
from ingot.engines.postgres.context import Context
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.lane_cache import id_or_nil
from ingot.engines.postgres.sql import SQL
from ingot.engines.postgres.tenants import check_tenant
from ingot.identity.model import TenantNotFound
from ingot.kernel.clock import to_datetime_or_none

REFERENCES_MAX: Final = 100
METRIC_ROWS_MAX: Final = 10_000  # What is not counted as it changes is counted up to here.
CODE_POINT_MAX: Final = 0x10FFFF
SURROGATES: Final = range(0xD800, 0xE000)


async def get_key(context: Context, command: ports.GetKey) -> Key | None:
    """The key with this name."""
    await check_tenant(context, command.tenant)
    rows = await context.database.read(command.tenant, SQL.get_key, command.tenant, command.key)
    return key_of(rows[0], command.key) if rows else None


async def open_key(context: Context, command: ports.OpenKey) -> tuple[Key, Content] | None:
    """The key with this name, and its bytes or where they are."""
    await check_tenant(context, command.tenant)
    rows = await context.database.call(CALL.open_key, command.tenant, command.key)
    return (key_of(rows[0], command.key), content_of(rows[0])) if rows else None


async def list_keys(context: Context, command: ports.ListKeys) -> list[Key]:
    """Keys that begin with a prefix, in order."""
    tenant = command.tenant
    await check_tenant(context, tenant)
    row = (tenant, command.prefix, command.after, command.limit)
    end = _prefix_end(command.prefix)
    if end is None:
        rows = await context.database.read(tenant, SQL.page_of_keys, *row)
    else:
        rows = await context.database.read(tenant, SQL.page_of_keys_below, *row, end)
    return [key_of(found, found["key"]) for found in rows]


async def find_blob(context: Context, command: ports.FindBlob) -> tuple[Content, list[Reference]] | None:
    """A blob that something in sight refers to, and some of the references."""
    await check_tenant(context, command.tenant)
    digest = digest_of(command.blob_id)
    if digest is None:
        return None
    sight = command.scope
    row = (command.tenant, digest, REFERENCES_MAX, sight.keys, sight.uploads, sight.types)
    rows = await context.database.call(CALL.open_blob, *row)
    if not rows:
        return None
    return content_of(rows[0]), decode(list[Reference], rows[0]["refers"])


async def get_upload(context: Context, command: ports.GetUpload) -> StoredUpload | None:
    """The upload with this id."""
    await check_tenant(context, command.tenant)
    rows = await context.database.read(command.tenant, SQL.get_upload, command.tenant, id_or_nil(command.id))
    return read_upload(rows[0][0]).open_upload() if rows else None


async def list_verifying(context: Context, command: ports.ListVerifyingUploads) -> list[StoredUpload]:
    """Uploads whose bytes are to be read back."""
    rows = await context.database.call(CALL.list_verifying, command.limit)
    return [read_upload(text).open_upload() for (text,) in rows]


async def get_usage(context: Context, command: ports.GetUsage) -> Usage:
    """What a tenant uses, or one owner in it."""
    try:
        row = await _read_usage(context, command)
    except TenantNotFound:
        return Usage()
    return Usage(bytes=row["bytes"], reserved_bytes=row["reserved"], keys=row["keys"], quota_bytes=row["quota"])


async def preview_purge(context: Context, command: ports.PreviewPurge) -> PurgeResult:
    """How many keys a purge would delete, and their bytes."""
    row = await _read_usage(context, command)
    return PurgeResult(keys=row["keys"], bytes=row["key_bytes"], dry_run=True)


async def _read_usage(context: Context, command: ports.GetUsage | ports.PreviewPurge) -> Record:
    await check_tenant(context, command.tenant)
    row = (command.tenant, command.owner or "")
    (usage,) = await context.database.call(CALL.get_usage, *row)
    return usage


async def register_object_store(context: Context, command: ports.RegisterObjectStore) -> StoreIdentity:
    """Remember which object store this is."""
    (row,) = await context.database.call(CALL.keep_objects, command.store_id)
    return StoreIdentity(store_id=row["store_id"], database_id=row["database"])


async def list_tombstoned_blobs(context: Context, command: ports.ListTombstonedBlobs) -> list[str]:
    """Blobs with a tombstone older than the grace, oldest first."""
    passed = None if command.after is None else bytes.fromhex(command.after)
    row = (command.grace, command.limit, passed)
    return [digest.hex() for (digest,) in await context.database.call(CALL.list_condemned, *row)]


async def list_trash(context: Context, command: ports.ListTrash) -> list[TrashedObject]:
    """Objects to delete, in the order of their places."""
    rows = await context.database.call(CALL.list_trash, command.limit, command.after)
    return [TrashedObject(storage_key=row["place"], multipart=row["multipart"]) for row in rows]


async def known_storage_keys(context: Context, command: ports.FindKnownStorageKeys) -> set[str]:
    """Those of these places that something names."""
    rows = await context.database.call(CALL.known_places, list(command.storage_keys))
    return {place for (place,) in rows}


async def list_to_scrub(context: Context, command: ports.ListBlobsToScrub) -> list[Content]:
    """Blobs that were last read whole before this time."""
    rows = await context.database.call(CALL.list_to_scrub, command.before, command.limit)
    return [content_of(row) for row in rows]


async def get_blob_metrics(context: Context, _: ports.GetBlobMetrics) -> BlobMetrics:
    """How things stand with all blobs."""
    (row,) = await context.database.call(CALL.blob_figures, METRIC_ROWS_MAX)
    return BlobMetrics(**{**row, "verified_before": to_datetime_or_none(row["verified_before"])})


async def get_reusable_bytes(_: Context, __: ports.GetReusableBytes) -> int | None:
    """Nobody here knows: the database is on no disk of ours."""
    return None


def _prefix_end(prefix: str) -> str | None:
    """The first text behind all that begin with this, in the order of code points, which is that of UTF-8 bytes."""
    while prefix:
        last = ord(prefix[-1]) + 1
        if last <= CODE_POINT_MAX:
            return prefix[:-1] + chr(SURROGATES.stop if last in SURROGATES else last)
        prefix = prefix[:-1]
    return None
