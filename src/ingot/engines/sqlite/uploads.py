"""Uploads: begin, take over, record progress, finish and end them."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.blobs import ports
from ingot.blobs.errors import ObjectsElsewhere, UploadEnded, UploadTaken
from ingot.blobs.model import UNFINISHED_UPLOADS_MAX, BlobEventData, Content, FinishedUpload, StoredUpload, UploadState
from ingot.engines.sqlite.blob_batch import BlobBatch, TenantName, run_all
from ingot.engines.sqlite.blob_rows import FileRow, KeyRow, SQLiteUploadRow, StorageUsage, TrashRow
from ingot.engines.sqlite.dependents import cancel_without_inputs, release_after_inputs
from ingot.engines.sqlite.job_files import drop_uploads
from ingot.engines.sqlite.quota import charge
from ingot.engines.sqlite.readers import Reader
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.jobs.files import CHECKPOINTS_MAX, OUTPUTS_MAX
from ingot.kernel.errors import IngotError


def begin_uploads(tx: Transaction, commands: Sequence[ports.BeginUpload]) -> list[StoredUpload | IngotError]:
    """Begin uploads and reserve their bytes."""
    batch = BlobBatch(tx)
    batch.load_uploads((command.tenant, command.id) for command in commands)
    batch.load_jobs(command.job_id for command in commands)
    batch.load_keys((command.tenant, command.key) for command in commands if command.key is not None)
    return run_all(batch, _begin, commands)


def _begin(batch: BlobBatch, command: ports.BeginUpload) -> StoredUpload:
    existing = batch.uploads.get((command.tenant, command.id))
    if existing is not None:
        return existing.stored_upload()
    if command.job_id is not None:
        batch.check_attempt(command.tenant, command.job_id, command.fence)
        if command.file == "output":
            batch.count_output(command.job_id, command.fence, OUTPUTS_MAX)
        elif command.file == "checkpoint":
            batch.check_checkpoint(command.job_id, command.fence, command.name, CHECKPOINTS_MAX)
    if command.key is not None:
        batch.check_key(command.tenant, command.key, command.if_match)
    batch.check_unfinished_uploads(command.tenant, UNFINISHED_UPLOADS_MAX)
    change = StorageUsage(reserved=command.reserve)
    charge(batch.tx, command.tenant, command.owner, change, quota=command.owner_quota)
    upload = new_upload_row(command, batch.tx.now)
    batch.unfinished_uploads[command.tenant] += 1
    if upload.file == "checkpoint":
        batch.begin_checkpoint(upload)
    else:
        batch.save_upload(upload)
    return upload.stored_upload()


def new_upload_row(command: ports.BeginUpload, now: int) -> SQLiteUploadRow:
    """Return the row of a new upload."""
    return SQLiteUploadRow(
        tenant=command.tenant,
        id=command.id,
        state=UploadState.OPEN,
        epoch=1,
        owner=command.owner,
        reserved=command.reserve,
        received=0,
        size=command.size,
        blob_id=command.blob_id,
        sha256=command.sha256,
        content_type=command.content_type,
        original_name=command.original_name,
        key=command.key,
        if_match=command.if_match,
        job_id=command.job_id,
        fence=command.fence,
        file=command.file,
        name=command.name,
        storage_key=command.storage_key,
        multipart=command.multipart,
        url_lifetime=command.url_lifetime,
        error=None,
        created_at=now,
        expires_at=now + command.lifetime,
        server=command.server,
    )


def take_over_uploads(tx: Transaction, commands: Sequence[ports.TakeOverUpload]) -> list[StoredUpload | IngotError]:
    """Give uploads their next epoch, which fences out earlier writers."""
    return run_all(_load_uploads(tx, commands), _take_over, commands)


def _take_over(batch: BlobBatch, command: ports.TakeOverUpload) -> StoredUpload:
    upload = batch.get_upload(command.tenant, command.id)
    if upload.state is not UploadState.OPEN:
        raise UploadEnded(f"the upload is {upload.state}")
    upload.epoch += 1
    batch.save_upload(upload)
    return upload.stored_upload()


def record_upload_progress(
    tx: Transaction, commands: Sequence[ports.RecordUploadProgress]
) -> list[StoredUpload | IngotError]:
    """Record the progress of uploads."""
    batch = _load_uploads(tx, commands)
    return run_all(batch, _record_upload_progress, commands)


def _record_upload_progress(batch: BlobBatch, command: ports.RecordUploadProgress) -> StoredUpload:
    upload, now = batch.get_upload(command.tenant, command.id), batch.tx.now
    _check_writer(upload, command.epoch)
    if command.reserved is not None:
        change = StorageUsage(reserved=command.reserved - upload.reserved)
        charge(batch.tx, command.tenant, upload.owner, change, quota=command.owner_quota)
        upload.reserved = command.reserved
    if command.received is not None:
        upload.received = command.received
    upload.blob_id = command.blob_id or upload.blob_id
    upload.sha256 = command.sha256 or upload.sha256
    if command.verifying and upload.state is UploadState.OPEN:
        upload.state, upload.verifying_at = UploadState.VERIFYING, now
    upload.expires_at = now + command.lifetime
    batch.save_upload(upload)
    return upload.stored_upload()


def _check_writer(upload: SQLiteUploadRow, epoch: int | None) -> None:
    if not upload.is_active:
        raise UploadEnded(f"the upload is {upload.state}")
    if epoch not in (None, upload.epoch):
        raise UploadTaken


def finish_uploads(tx: Transaction, commands: Sequence[ports.FinishUpload]) -> list[FinishedUpload | IngotError]:
    """Store the blobs of uploads whose bytes are complete and verified."""
    batch = _load_uploads(tx, commands)
    batch.load_blobs((command.tenant, command.content.id) for command in commands)
    batch.load_keys((upload.tenant, upload.key) for upload in batch.uploads.values() if upload.key is not None)
    batch.load_files(batch.uploads.values())
    answers = run_all(batch, _finish, commands)
    release_after_inputs(tx, batch.jobs_with_input)
    return answers


def _finish(batch: BlobBatch, command: ports.FinishUpload) -> FinishedUpload:
    upload, content = batch.get_upload(command.tenant, command.id), command.content
    if upload.state is UploadState.DONE and upload.blob_id == content.id:
        trash_unused_object(batch, upload, content)
        return upload.finished_upload()
    _check_writer(upload, command.epoch)
    if upload.job_id is not None and upload.file == "input":
        batch.check_blocked(upload.tenant, upload.job_id)
    elif upload.job_id is not None:
        batch.check_attempt(upload.tenant, upload.job_id, upload.fence)
    batch.check_stored(upload.tenant, content)
    replaced_key = None if upload.key is None else batch.check_key(upload.tenant, upload.key, upload.if_match)
    complete_upload(batch, upload, content, replaced_key, quota=command.owner_quota)
    upload.expires_at = batch.tx.now + command.lifetime
    batch.save_upload(upload)
    return upload.finished_upload()


def complete_upload(
    batch: BlobBatch, upload: SQLiteUploadRow, content: Content, replaced_key: KeyRow | None, *, quota: int | None
) -> None:
    """Store the blob of an upload, and set the key or the job file that the upload is for.

    Raises `QuotaExceeded`, and has changed nothing then.
    """
    tx, tenant = batch.tx, upload.tenant
    change = StorageUsage(bytes=content.size, reserved=-upload.reserved)
    refunds: list[tuple[str, StorageUsage]] = []
    replaced: KeyRow | FileRow | None = None
    if upload.key is not None:
        change += StorageUsage(keys=1, key_bytes=content.size)
        replaced = replaced_key
        if replaced_key is not None:
            refund = StorageUsage(bytes=-replaced_key.size, keys=-1, key_bytes=-replaced_key.size)
            refunds.append((replaced_key.owner, refund))
    elif (file := batch.replaced_file(upload)) is not None:
        replaced = file
        refunds.append((file.owner, StorageUsage(bytes=-file.size)))
    existing = batch.blobs.get((tenant, content.id))
    if existing is not None and existing.deleted_by is not None:
        refunds.append((existing.deleted_by, StorageUsage(deleted=-existing.size)))
    deleted = 0
    if replaced is not None and replaced.blob_id != content.id:
        deleted = replaced.size if batch.deletes_blob(replaced.blob, tenant, replaced.blob_id) else 0
        refunds.append((replaced.owner, StorageUsage(deleted=deleted)))
    charge(tx, tenant, upload.owner, change, quota=quota, refunds=refunds)
    if replaced is not None:
        batch.drop_reference(replaced.blob, tenant, replaced.owner, deleted, count=False)
    blob = batch.store_blob(upload, content)
    if upload.storage_key not in (None, blob.storage_key):
        batch.trash_object(upload, content.size)
    upload.state, upload.done_at = UploadState.DONE, tx.now
    upload.blob_id, upload.sha256, upload.size = content.id, content.sha256, content.size
    upload.received, upload.reserved = content.size, 0
    upload.storage_key = upload.multipart = None
    if upload.key is not None:
        batch.set_key(_key_row(upload, upload.key, blob.number, content, tx.now))
    elif upload.file == "output":
        return  # The event is appended when the attempt has succeeded.
    elif upload.file is not None:
        batch.attach_file(upload, blob)
    if upload.file == "checkpoint":
        return  # Attempts may save very often, and only later attempts read checkpoints.
    event_data = BlobEventData(
        blob_id=content.id,
        size=content.size,
        key=upload.key,
        content_type=upload.content_type,
        job_id=upload.job_id,
        name=upload.name,
    )
    tx.effects.events[upload.tenant].append(("blob.stored", event_data))


def _key_row(upload: SQLiteUploadRow, key: str, blob: int, content: Content, now: int) -> KeyRow:
    return KeyRow(
        tenant=upload.tenant,
        key=key,
        blob=blob,
        blob_id=content.id,
        sha256=content.sha256,
        size=content.size,
        content_type=upload.content_type,
        original_name=upload.original_name,
        owner=upload.owner,
        uploaded_at=now,
        upload=upload.id,
    )


def trash_unused_object(batch: BlobBatch, upload: SQLiteUploadRow, content: Content) -> None:
    """Put the object of a repeated command into the trash, unless it is the object of the blob.

    The first command may have put it there, where its bytes are counted.
    """
    blob = batch.blobs.get((upload.tenant, content.id))
    if content.storage_key is not None and (blob is None or content.storage_key != blob.storage_key):
        values = upload.tenant, upload.owner, 0, upload.sent_until(batch.tx.now)
        batch.add_trash(TrashRow(content.storage_key, None, *values))


def end_uploads(tx: Transaction, commands: Sequence[ports.EndUpload]) -> list[IngotError | None]:
    """Cancel uploads or mark them as failed."""
    batch = _load_uploads(tx, commands)
    answers = run_all(batch, _end, commands)
    cancel_without_inputs(tx, batch.jobs_without_input)
    return answers


def _end(batch: BlobBatch, command: ports.EndUpload) -> None:
    upload = batch.uploads.get((command.tenant, command.id))
    if upload is None or upload.state is UploadState.DONE:
        return
    if command.error is None:
        batch.drop_upload(upload)
    elif upload.is_active:
        batch.fail_upload(upload, command.error, keep=command.lifetime)


def sweep_uploads(tx: Transaction, command: ports.SweepUploads) -> int:
    """Drop uploads that have expired, or whose attempt no longer runs."""
    pairs = tx.read(list[TenantName], SQL.uploads_to_sweep, tx.now, command.limit)
    cancel_without_inputs(tx, drop_uploads(tx, pairs, "expired"))
    return len(pairs)


def renew_server(tx: Transaction, command: ports.RenewServer) -> int:
    """Drop uploads of other servers. They have ended: only one process can have the file open."""
    check_object_store(tx, command.store_id)
    pairs = tx.read(list[TenantName], SQL.uploads_of_other_servers, command.server, command.limit)
    cancel_without_inputs(tx, drop_uploads(tx, pairs, "was interrupted"))
    return len(pairs)


def unregister_server(_: Transaction, __: ports.UnregisterServer) -> None:
    """Do nothing. The next server that opens the file knows that this one has ended."""


def check_object_store(tx: Transaction, store_id: str | None) -> None:
    """Raise `ObjectsElsewhere` if the objects of the database are in another object store."""
    if store_id is not None and tx.execute(SQL.object_store_id).get not in (None, store_id):
        raise ObjectsElsewhere


def _load_uploads(
    tx: Transaction,
    commands: Sequence[ports.TakeOverUpload | ports.RecordUploadProgress | ports.FinishUpload | ports.EndUpload],
) -> BlobBatch:
    batch = BlobBatch(tx)
    batch.load_uploads((command.tenant, command.id) for command in commands)
    return batch


def get_upload(reader: Reader, command: ports.GetUpload) -> StoredUpload | None:
    """Read an upload."""
    upload_ids = as_json([(reader.writer_state.number_of(command.tenant), command.id)])
    rows = reader.read(list[SQLiteUploadRow], SQL.uploads_by_id, upload_ids)
    return rows[0].stored_upload() if rows else None


def list_verifying_uploads(reader: Reader, command: ports.ListVerifyingUploads) -> list[StoredUpload]:
    """Read the uploads whose bytes must be read back."""
    rows = reader.read(list[SQLiteUploadRow], SQL.verifying_uploads, command.limit)
    return [row.stored_upload() for row in rows]
