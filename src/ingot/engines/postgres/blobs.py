"""Blobs: what changes them. Crowds of puts, of uploads that finish and of deletes go together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from ingot.blobs import ports
from ingot.blobs.errors import UploadNotFound
from ingot.blobs.model import Content, FinishedUpload, Key, PurgeResult, StoredUpload
from ingot.engines.postgres import dependents
from ingot.engines.postgres.blob_rows import digest_of, key_of, read_upload
from ingot.engines.postgres.command_batcher import in_turns
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

BYTES_PER_ROW: Final = 1024  # So many bytes weigh as much as a row without any.
SEND_AGAIN: Final = "again"

C = TypeVar("C", ports.PutBlob, ports.FinishUpload, ports.DeleteKey)
A = TypeVar("A")


def weigh(command: ports.PutBlob | ports.FinishUpload) -> int:
    """How many small rows a command stands for."""
    return 1 + (len(command.content.inline or b"") + len(command.content.part_checksums)) // BYTES_PER_ROW


# -- together -----------------------------------------------------------------------------------------------


async def put_blobs(db: Database, memory: LaneCache, commands: Sequence[ports.PutBlob]) -> list[Key | IngotError]:
    """Set keys together; those with the same name go one after the other."""
    return await in_turns(commands, lambda command: (command.tenant, command.key), partial(_put, db, memory))


async def finish_uploads(
    db: Database, memory: LaneCache, commands: Sequence[ports.FinishUpload]
) -> list[FinishedUpload | IngotError]:
    """Finish uploads together; those of the same one, or for the same key, go one after the other."""
    return await in_turns(commands, lambda command: (command.tenant, command.id), partial(_finish, db, memory))


async def delete_keys(db: Database, memory: LaneCache, commands: Sequence[ports.DeleteKey]) -> list[Key | IngotError]:
    """Delete keys together; those with the same name go one after the other."""
    return await in_turns(commands, lambda command: (command.tenant, command.key), partial(_delete, db, memory))


async def _put(db: Database, memory: LaneCache, commands: list[ports.PutBlob]) -> Sequence[Key | IngotError | None]:
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

    def answer(command: ports.PutBlob, row: Record) -> Key:
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

    return await _send_batch(db, memory, CALL.put_blobs, commands, columns, answer)


async def _finish(
    db: Database, memory: LaneCache, commands: list[ports.FinishUpload]
) -> Sequence[FinishedUpload | IngotError | None]:
    columns: list[list[Any]] = [
        [id_or_nil(command.tenant) for command in commands],
        [id_or_nil(command.id) for command in commands],
        [command.epoch for command in commands],
        [command.lifetime for command in commands],
        [command.owner_quota for command in commands],
        *_content_columns([command.content for command in commands]),
    ]

    def answer(_: ports.FinishUpload, row: Record) -> FinishedUpload:
        return read_upload(row["upload"]).finished()

    return await _send_batch(db, memory, CALL.finish_uploads, commands, columns, answer)


async def _delete(
    db: Database, memory: LaneCache, commands: list[ports.DeleteKey]
) -> Sequence[Key | IngotError | None]:
    columns: list[list[Any]] = [
        [id_or_nil(command.tenant) for command in commands],
        [command.key for command in commands],
        [command.if_match for command in commands],
    ]
    return await _send_batch(
        db, memory, CALL.delete_keys, commands, columns, lambda command, row: key_of(row, command.key)
    )


def _content_columns(contents: Sequence[Content]) -> list[list[Any]]:
    """Blobs as the arrays that functions take."""
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
    memory: LaneCache,
    statement: str,
    commands: Sequence[C],
    columns: list[list[Any]],
    answer: Callable[[C, Record], A],
) -> list[A | IngotError | None]:
    """Call a function that answers every command by itself; what it refuses by now may have been done before."""
    rows, maybe_done = await db.call_maybe_repeated(statement, *columns)
    by_index = {row["place"]: row for row in rows}
    dependents.record_unblocked(
        memory, [dependents.UnblockedJob.from_json(row["upload"]) for row in rows if row["place"] is None]
    )
    answers: list[A | IngotError | None] = []
    for index, command in enumerate(commands, start=1):
        row = by_index[index]
        if row["refusal"] is None:
            answers.append(answer(command, row))
        elif row["refusal"] == SEND_AGAIN:
            answers.append(None)
        elif maybe_done:
            answers.append(OutcomeUnknown("The first answer was lost, and by now this is refused."))
        else:
            code, _, about = row["refusal"].partition(" ")
            answers.append(ERRORS_BY_SQLSTATE[code]("", about))
    memory.notify_events_written(
        command.tenant for command, made in zip(commands, answers, strict=True) if made is not None
    )
    return answers


# -- one by one ---------------------------------------------------------------------------------------------


async def begin_upload(context: Context, command: ports.BeginUpload) -> StoredUpload:
    """Begin an upload, and reserve its bytes."""
    check_tenant_id(command.tenant)
    if command.job_id is not None and not is_id(command.job_id):
        raise LeaseLost
    limits = OUTPUTS_MAX, CHECKPOINTS_MAX
    begun = await _call_for_upload(context, CALL.begin_upload, msgspec.json.encode(command).decode(), *limits)
    context.lane_cache.notify_events_written([command.tenant])
    return begun


async def take_upload(context: Context, command: ports.TakeOverUpload) -> StoredUpload:
    """Give an upload the next epoch."""
    _check_ids(command)
    return await _call_for_upload(context, CALL.take_upload, command.tenant, command.id)


async def record_upload_progress(context: Context, command: ports.RecordUploadProgress) -> StoredUpload:
    """Keep what is known of an upload."""
    _check_ids(command)
    row = (command.tenant, command.id, command.epoch, command.lifetime, command.received, command.reserved)
    announced = [None if text is None else bytes.fromhex(text) for text in (command.blob_id, command.sha256)]
    noted = await _call_for_upload(context, CALL.note_upload, *row, command.verifying, command.owner_quota, *announced)
    if command.reserved is not None:
        context.lane_cache.notify_events_written([command.tenant])
    return noted


async def end_upload(context: Context, command: ports.EndUpload) -> None:
    """End an upload that is not done."""
    check_tenant_id(command.tenant)
    if is_id(command.id):
        rows = await context.database.call(CALL.end_upload, command.tenant, command.id, command.error, command.lifetime)
        dependents.record_unblocked(context.lane_cache, [dependents.UnblockedJob.from_json(text) for (text,) in rows])


async def sweep_uploads(context: Context, command: ports.SweepUploads) -> int:
    """End uploads whose time is over."""
    ((swept, canceled),) = await context.database.call(CALL.sweep_uploads, command.limit)
    dependents.record_unblocked(context.lane_cache, map(dependents.UnblockedJob.from_json, canceled))
    return int(swept)


async def purge_keys(context: Context, command: ports.PurgeKeys) -> PurgeResult:
    """Delete some keys of an owner."""
    check_tenant_id(command.tenant)
    row = (command.tenant, command.owner, command.limit, json_text(command.act))
    ((keys, size),) = await context.database.call(CALL.purge_keys, *row)
    context.lane_cache.notify_events_written([command.tenant])
    return PurgeResult(keys=keys, bytes=size, more=keys >= command.limit)


async def collect_blob(context: Context, command: ports.CollectBlob) -> int | None:
    """Take a blob away that nothing refers to."""
    ((size,),) = await context.database.call(
        CALL.collect_blob, digest_of(command.blob_id), command.grace, command.dry_run
    )
    return None if size is None else int(size)


async def forget_trash(context: Context, command: ports.ForgetTrash) -> None:
    """Forget objects that are deleted."""
    await context.database.call(CALL.forget_trash, list(command.storage_keys))


async def record_scrub(context: Context, command: ports.RecordScrub) -> None:
    """Keep which blobs were whole, and which were not."""
    read = [*command.intact, *command.damaged]
    damages = [False] * len(command.intact) + [True] * len(command.damaged)
    await context.database.call(
        CALL.note_scrub, [bytes.fromhex(id) for id, _ in read], [storage_key for _, storage_key in read], damages
    )


async def _call_for_upload(context: Context, statement: str, *values: Any) -> StoredUpload:
    ((text,),) = await context.database.call(statement, *values)
    return read_upload(text).open_upload()


def _check_ids(command: ports.TakeOverUpload | ports.RecordUploadProgress) -> None:
    check_tenant_id(command.tenant)
    if not is_id(command.id):
        raise UploadNotFound
