"""Commands that change blobs, keys and uploads. Puts, finished uploads and deletes run in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from ingot.blobs import ports
from ingot.blobs.errors import UploadNotFound
from ingot.blobs.model import UNFINISHED_UPLOADS_MAX, Content, FinishedUpload, Key, PurgeResult, StoredUpload
from ingot.engines.postgres import dependents
from ingot.engines.postgres.blob_rows import digest_of, key_of, read_upload
from ingot.engines.postgres.command_batcher import send_distinct
from ingot.engines.postgres.connection import ERRORS_BY_SQLSTATE, Database, Record
from ingot.engines.postgres.context import Context
from ingot.engines.postgres.function_calls import CALL, json_text
from ingot.engines.postgres.lane_cache import LaneCache, id_or_nil
from ingot.engines.postgres.tenants import check_tenant_id
from ingot.jobs.errors import LeaseLost
from ingot.jobs.files import CHECKPOINTS_MAX, OUTPUTS_MAX
from ingot.kernel.clock import to_datetime
from ingot.kernel.errors import IngotError, OutcomeUnknown
from ingot.kernel.ids import is_id

BYTES_PER_ROW: Final = 1024  # A command with this many bytes counts as one more row of its batch.
SEND_AGAIN: Final = "again"  # The refusal of a command that must be sent again in the next batch.

C = TypeVar("C", ports.PutBlob, ports.FinishUpload, ports.DeleteKey)
R = TypeVar("R")


def weigh(command: ports.PutBlob | ports.FinishUpload) -> int:
    """Return the number of rows that a command counts as in its batch."""
    return 1 + (len(command.content.inline or b"") + len(command.content.part_checksums)) // BYTES_PER_ROW


# -- commands in batches ------------------------------------------------------------------------------------


async def put_blobs(db: Database, lane_cache: LaneCache, commands: Sequence[ports.PutBlob]) -> list[Key | IngotError]:
    """Set keys in a batch. Commands for the same key run in their order."""
    return await send_distinct(commands, lambda command: (command.tenant, command.key), partial(_put, db, lane_cache))


async def finish_uploads(
    db: Database, lane_cache: LaneCache, commands: Sequence[ports.FinishUpload]
) -> list[FinishedUpload | IngotError]:
    """Finish uploads in a batch. Commands for the same upload run in their order."""
    return await send_distinct(commands, lambda command: (command.tenant, command.id), partial(_finish, db, lane_cache))


async def delete_keys(
    db: Database, lane_cache: LaneCache, commands: Sequence[ports.DeleteKey]
) -> list[Key | IngotError]:
    """Delete keys in a batch. Commands for the same key run in their order."""
    return await send_distinct(
        commands, lambda command: (command.tenant, command.key), partial(_delete, db, lane_cache)
    )


async def _put(db: Database, lane_cache: LaneCache, commands: list[ports.PutBlob]) -> Sequence[Key | IngotError | None]:
    columns: list[list[Any]] = [
        [command.id for command in commands],
        [id_or_nil(command.tenant) for command in commands],
        [command.owner for command in commands],
        [command.key for command in commands],
        [command.if_match for command in commands],
        *_content_columns([command.content for command in commands]),
        [command.content_type for command in commands],
        [command.original_name for command in commands],
        [command.owner_quota for command in commands],
    ]

    def result_of(command: ports.PutBlob, row: Record) -> Key:
        return Key(
            key=command.key,
            blob_id=command.content.id,
            sha256=command.content.sha256,
            size=command.content.size,
            content_type=command.content_type,
            original_name=command.original_name,
            uploaded_at=to_datetime(row["uploaded_at"]),
            owner=command.owner,
        )

    return await _send_batch(db, lane_cache, CALL.put_blobs, commands, columns, result_of)


async def _finish(
    db: Database, lane_cache: LaneCache, commands: list[ports.FinishUpload]
) -> Sequence[FinishedUpload | IngotError | None]:
    columns: list[list[Any]] = [
        [id_or_nil(command.tenant) for command in commands],
        [id_or_nil(command.id) for command in commands],
        [command.epoch for command in commands],
        [command.lifetime for command in commands],
        [command.owner_quota for command in commands],
        *_content_columns([command.content for command in commands]),
        [command.content.etag for command in commands],
    ]

    def result_of(_: ports.FinishUpload, row: Record) -> FinishedUpload:
        return read_upload(row["upload"]).finished_upload()

    return await _send_batch(db, lane_cache, CALL.finish_uploads, commands, columns, result_of)


async def _delete(
    db: Database, lane_cache: LaneCache, commands: list[ports.DeleteKey]
) -> Sequence[Key | IngotError | None]:
    columns: list[list[Any]] = [
        [id_or_nil(command.tenant) for command in commands],
        [command.key for command in commands],
        [command.if_match for command in commands],
    ]
    return await _send_batch(
        db, lane_cache, CALL.delete_keys, commands, columns, lambda command, row: key_of(row, command.key)
    )


def _content_columns(contents: Sequence[Content]) -> list[list[Any]]:
    """Return contents as the column arrays that the SQL functions take."""
    return [
        [bytes.fromhex(content.id) for content in contents],
        [bytes.fromhex(content.sha256) for content in contents],
        [content.size for content in contents],
        [content.storage_key for content in contents],
        [content.inline for content in contents],
        [content.part_checksums for content in contents],
    ]


async def _send_batch(
    db: Database,
    lane_cache: LaneCache,
    statement: str,
    commands: Sequence[C],
    columns: list[list[Any]],
    result_of: Callable[[C, Record], R],
) -> list[R | IngotError | None]:
    """Call an SQL function that accepts or refuses each command of a batch. `None` means that it must be sent again.

    If the call was repeated after a lost response, a refused command may have been executed the first time. Its outcome
    is then `OutcomeUnknown`.
    """
    rows, maybe_done = await db.call_maybe_repeated(statement, *columns)
    by_index = {row["ordinal"]: row for row in rows}
    dependents.record_unblocked(
        lane_cache, [dependents.UnblockedJob.from_json(row["upload"]) for row in rows if row["ordinal"] is None]
    )
    results: list[R | IngotError | None] = []
    for index, command in enumerate(commands, start=1):
        row = by_index[index]
        if row["refusal"] is None:
            results.append(result_of(command, row))
        elif row["refusal"] == SEND_AGAIN:
            results.append(None)
        elif maybe_done:
            results.append(OutcomeUnknown("The first response was lost, and the repeated command was refused."))
        else:
            code, _, detail = row["refusal"].partition(" ")
            results.append(ERRORS_BY_SQLSTATE[code]("", detail))
    lane_cache.notify_events_written(
        command.tenant for command, result in zip(commands, results, strict=True) if result is not None
    )
    return results


# -- single commands ----------------------------------------------------------------------------------------


async def begin_upload(context: Context, command: ports.BeginUpload) -> StoredUpload:
    """See `BeginUpload`."""
    check_tenant_id(command.tenant)
    if command.job_id is not None and not is_id(command.job_id):
        raise LeaseLost
    limits = OUTPUTS_MAX, CHECKPOINTS_MAX, UNFINISHED_UPLOADS_MAX
    upload = await _call_for_upload(context, CALL.begin_upload, msgspec.json.encode(command).decode(), *limits)
    context.lane_cache.notify_events_written([command.tenant])
    return upload


async def take_over_upload(context: Context, command: ports.TakeOverUpload) -> StoredUpload:
    """See `TakeOverUpload`."""
    _check_ids(command)
    return await _call_for_upload(context, CALL.take_over_upload, command.tenant, command.id)


async def record_upload_progress(context: Context, command: ports.RecordUploadProgress) -> StoredUpload:
    """See `RecordUploadProgress`."""
    _check_ids(command)
    upload = await _call_for_upload(
        context,
        CALL.update_upload,
        command.tenant,
        command.id,
        command.epoch,
        command.lifetime,
        command.received,
        command.reserved,
        command.verifying,
        command.owner_quota,
        None if command.blob_id is None else bytes.fromhex(command.blob_id),
        None if command.sha256 is None else bytes.fromhex(command.sha256),
    )
    if command.reserved is not None:
        context.lane_cache.notify_events_written([command.tenant])
    return upload


async def end_upload(context: Context, command: ports.EndUpload) -> None:
    """See `EndUpload`."""
    check_tenant_id(command.tenant)
    if is_id(command.id):
        rows = await context.database.call(CALL.end_upload, command.tenant, command.id, command.error, command.lifetime)
        dependents.record_unblocked(context.lane_cache, [dependents.UnblockedJob.from_json(text) for (text,) in rows])


async def sweep_uploads(context: Context, command: ports.SweepUploads) -> int:
    """See `SweepUploads`."""
    ((swept, canceled_jobs),) = await context.database.call(CALL.sweep_uploads, command.limit)
    dependents.record_unblocked(context.lane_cache, map(dependents.UnblockedJob.from_json, canceled_jobs))
    return int(swept)


async def purge_keys(context: Context, command: ports.PurgeKeys) -> PurgeResult:
    """See `PurgeKeys`."""
    check_tenant_id(command.tenant)
    arguments = (command.tenant, command.owner, command.limit, json_text(command.act))
    ((keys, size),) = await context.database.call(CALL.purge_keys, *arguments)
    context.lane_cache.notify_events_written([command.tenant])
    return PurgeResult(keys=keys, bytes=size, more=keys >= command.limit)


async def collect_blob(context: Context, command: ports.CollectBlob) -> int | None:
    """See `CollectBlob`."""
    ((size,),) = await context.database.call(
        CALL.collect_blob_of, id_or_nil(command.holder), digest_of(command.blob_id), command.grace, command.dry_run
    )
    return None if size is None else int(size)


async def forget_trash(context: Context, command: ports.ForgetTrash) -> None:
    """See `ForgetTrash`."""
    await context.database.call(CALL.forget_trash, command.store_id, list(command.storage_keys))


async def record_scrub(context: Context, command: ports.RecordScrub) -> None:
    """See `RecordScrub`."""
    blobs = [*command.intact, *command.damaged]
    holders, digests = [id_or_nil(holder) for holder, _, _ in blobs], [bytes.fromhex(id) for _, id, _ in blobs]
    storage_keys = [storage_key for _, _, storage_key in blobs]
    damaged = [False] * len(command.intact) + [True] * len(command.damaged)
    columns = holders, digests, storage_keys, damaged
    await context.database.call(CALL.record_tenant_scrub, command.store_id, *columns)


async def _call_for_upload(context: Context, statement: str, *values: Any) -> StoredUpload:
    ((text,),) = await context.database.call(statement, *values)
    return read_upload(text).stored_upload()


def _check_ids(command: ports.TakeOverUpload | ports.RecordUploadProgress) -> None:
    check_tenant_id(command.tenant)
    if not is_id(command.id):
        raise UploadNotFound
