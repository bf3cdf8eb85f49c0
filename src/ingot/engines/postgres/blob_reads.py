"""Reading of blobs, keys, uploads, usage, tombstones and the trash."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from ingot.blobs import ports
from ingot.blobs.errors import QuotaExceeded
from ingot.blobs.model import (
    BlobMetrics,
    Content,
    FreedTimes,
    Key,
    PurgeResult,
    Reference,
    StoredUpload,
    TombstonedBlob,
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
COMMANDS_WITH_QUOTA: Final = (ports.BeginUpload, ports.PutBlob, ports.FinishUpload, ports.RecordUploadProgress)
METRIC_ROWS_MAX: Final = 10_000  # Metrics without a counter are counted row by row, up to this number.
QuotaCommand = ports.BeginUpload | ports.PutBlob | ports.FinishUpload | ports.RecordUploadProgress
R = TypeVar("R")
CODE_POINT_MAX: Final = 0x10FFFF
SURROGATES: Final = range(0xD800, 0xE000)


async def get_key(context: Context, command: ports.GetKey) -> Key | None:
    """See `GetKey`."""
    await check_tenant(context, command.tenant)
    rows = await context.database.read(command.tenant, SQL.get_key, command.tenant, command.key)
    return key_of(rows[0], command.key) if rows else None


async def open_key(context: Context, command: ports.OpenKey) -> tuple[Key, Content] | None:
    """See `OpenKey`."""
    await check_tenant(context, command.tenant)
    rows = await context.database.call(CALL.open_key, command.tenant, command.key)
    return (key_of(rows[0], command.key), content_of(rows[0])) if rows else None


async def list_keys(context: Context, command: ports.ListKeys) -> list[Key]:
    """See `ListKeys`."""
    tenant = command.tenant
    await check_tenant(context, tenant)
    arguments = (tenant, command.prefix, command.after, command.limit)
    end = _prefix_end(command.prefix)
    if end is None:
        rows = await context.database.read(tenant, SQL.page_of_keys, *arguments)
    else:
        rows = await context.database.read(tenant, SQL.page_of_keys_below, *arguments, end)
    return [key_of(row, row["key"]) for row in rows]


async def find_blob(context: Context, command: ports.FindBlob) -> tuple[Content, list[Reference]] | None:
    """See `FindBlob`."""
    await check_tenant(context, command.tenant)
    digest = digest_of(command.blob_id)
    if digest is None:
        return None
    scope = command.scope
    job_id = None if scope.job_id is None else id_or_nil(scope.job_id)
    arguments = (command.tenant, digest, REFERENCES_MAX, scope.keys, scope.uploads, scope.types, scope.owner, job_id)
    rows = await context.database.call(CALL.open_blob, *arguments, read_only=True)
    if not rows:
        return None
    return content_of(rows[0]), decode(list[Reference], rows[0]["refers"])


async def get_upload(context: Context, command: ports.GetUpload) -> StoredUpload | None:
    """See `GetUpload`."""
    await check_tenant(context, command.tenant)
    rows = await context.database.read(command.tenant, SQL.get_upload, command.tenant, id_or_nil(command.id))
    return read_upload(rows[0][0]).stored_upload() if rows else None


async def list_verifying(context: Context, command: ports.ListVerifyingUploads) -> list[StoredUpload]:
    """See `ListVerifyingUploads`."""
    rows = await context.database.call(CALL.list_verifying, command.limit)
    return [read_upload(text).stored_upload() for (text,) in rows]


async def get_usage(context: Context, command: ports.GetUsage) -> Usage:
    """See `GetUsage`."""
    try:
        row = await _read_usage(context, command)
    except TenantNotFound:
        return Usage()
    freed, now = freed_times(row) if row["deleted"] else None, context.lane_cache.now()
    return Usage(
        bytes=row["bytes"],
        reserved_bytes=row["reserved"],
        deleted_bytes=row["deleted"],
        freed_from=None if freed is None else freed.freed_from(now),
        freed_by=None if freed is None else freed.freed_by(now),
        keys=row["keys"],
        quota_bytes=row["quota"],
    )


async def explain_quota(context: Context, run: Callable[[QuotaCommand], Awaitable[R]], command: QuotaCommand) -> R:
    """Run a command that needs quota. If it exceeds one, the error names the deleted bytes that will be free."""
    try:
        return await run(command)
    except QuotaExceeded as error:
        owner = getattr(command, "owner", None) if error.scope == "token" else None
        usage = await get_usage(context, ports.GetUsage(tenant=command.tenant, owner=owner))
        if usage.freed_from is None or usage.freed_by is None or (error.scope == "token" and owner is None):
            raise
        raise QuotaExceeded(
            scope=error.scope,
            usage=error.usage,
            limit=error.limit,
            requested=error.requested,
            deleted=min(usage.deleted_bytes, error.usage),
            freed=(usage.freed_from, usage.freed_by),
        ) from None


def freed_times(row: Record) -> FreedTimes:
    """Return when deleted bytes become free."""
    return FreedTimes(row["blobs_from"], row["blobs_by"], row["objects_from"], row["objects_by"])


async def preview_purge(context: Context, command: ports.PreviewPurge) -> PurgeResult:
    """See `PreviewPurge`."""
    row = await _read_usage(context, command)
    return PurgeResult(keys=row["keys"], bytes=row["key_bytes"], dry_run=True)


async def _read_usage(context: Context, command: ports.GetUsage | ports.PreviewPurge) -> Record:
    await check_tenant(context, command.tenant)
    (row,) = await context.database.call(CALL.get_usage, command.tenant, command.owner or "")
    return row


async def list_tombstoned_blobs(context: Context, command: ports.ListTombstonedBlobs) -> list[TombstonedBlob]:
    """See `ListTombstonedBlobs`."""
    after = command.after
    position = (None, None) if after is None else (after.holder, bytes.fromhex(after.blob_id))
    rows = await context.database.call(CALL.list_tombstoned, command.grace, command.limit, *position, read_only=True)
    return [TombstonedBlob(holder=holder, blob_id=digest.hex()) for holder, digest in rows]


async def list_trash(context: Context, command: ports.ListTrash) -> list[TrashedObject]:
    """See `ListTrash`."""
    rows = await context.database.call(CALL.list_trash, command.limit, command.after)
    return [TrashedObject(storage_key=row["place"], multipart=row["multipart"]) for row in rows]


async def find_known_storage_keys(context: Context, command: ports.FindKnownStorageKeys) -> set[str]:
    """See `FindKnownStorageKeys`."""
    rows = await context.database.call(CALL.known_storage_keys, list(command.storage_keys))
    return {storage_key for (storage_key,) in rows}


async def list_to_scrub(context: Context, command: ports.ListBlobsToScrub) -> list[Content]:
    """See `ListBlobsToScrub`."""
    rows = await context.database.call(CALL.list_to_scrub, command.before, command.limit)
    return [content_of(row) for row in rows]


async def get_blob_metrics(context: Context, _: ports.GetBlobMetrics) -> BlobMetrics:
    """See `GetBlobMetrics`."""
    (row,) = await context.database.call(CALL.blob_metrics, METRIC_ROWS_MAX)
    freed, now = freed_times(row) if row["deleted_bytes"] else None, context.lane_cache.now()
    counts = {
        name: row[name] for name in ("blobs", "bytes", "deleted_bytes", "damaged", "tombstones", "trash", "uploads")
    }
    return BlobMetrics(
        **counts,
        verified_before=to_datetime_or_none(row["verified_before"]),
        freed_from=None if freed is None else freed.freed_from(now),
        freed_by=None if freed is None else freed.freed_by(now),
    )


async def get_reusable_bytes(_: Context, __: ports.GetReusableBytes) -> int | None:
    """Return `None`, because the disk of the database is not ours."""
    return None


def _prefix_end(prefix: str) -> str | None:
    """Return the first text after all texts with this prefix, or `None` if there is no such text.

    Texts are ordered by code points, which is also the order of their UTF-8 bytes.
    """
    while prefix:
        code_point = ord(prefix[-1]) + 1
        if code_point <= CODE_POINT_MAX:
            return prefix[:-1] + chr(SURROGATES.stop if code_point in SURROGATES else code_point)
        prefix = prefix[:-1]
    return None
