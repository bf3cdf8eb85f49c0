"""Uploads: blobs on their way in."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.blobs import ports
from ingot.blobs.errors import UploadEnded, UploadTaken
from ingot.blobs.model import BlobEventData, Content, FinishedUpload, StoredUpload, UploadState
from ingot.engines.sqlite.blob_batch import BlobBatch, TenantName, run_all
from ingot.engines.sqlite.blob_rows import BlobRow, KeyRow, SQLiteUploadRow, StorageUsage
from ingot.engines.sqlite.dependents import cancel_without_inputs, release_after_inputs
from ingot.engines.sqlite.job_files import drop_uploads
from ingot.engines.sqlite.quota import charge
from ingot.engines.sqlite.readers import Reader
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.jobs.files import CHECKPOINTS_MAX, OUTPUTS_MAX
from ingot.kernel.errors import IngotError


def begin_uploads(tx: Transaction, commands: Sequence[ports.BeginUpload]) -> list[StoredUpload | IngotError]:
    """Begin uploads, each with its bytes set aside."""
    shelf = BlobBatch(tx)
    shelf.load_uploads((command.tenant, command.id) for command in commands)
    shelf.load_jobs(command.job_id for command in commands)
    shelf.load_keys((command.tenant, command.key) for command in commands if command.key is not None)
    return run_all(shelf, _begin, commands)


def _begin(shelf: BlobBatch, command: ports.BeginUpload) -> StoredUpload:
    known = shelf.uploads.get((command.tenant, command.id))
    if known is not None:
        return known.stored_upload()
    if command.job_id is not None:
        shelf.check_attempt(command.tenant, command.job_id, command.fence)
        if command.file == "output":
            shelf.count_output(command.job_id, command.fence, OUTPUTS_MAX)
        elif command.file == "checkpoint":
            shelf.check_checkpoint(command.job_id, command.fence, command.name, CHECKPOINTS_MAX)
    if command.key is not None:
        shelf.check_key(command.tenant, command.key, command.if_match)
    change = StorageUsage(reserved=command.reserve)
    charge(shelf.tx, command.tenant, command.owner, change, quota=command.owner_quota)
    upload = new_upload_row(command, shelf.tx.now)
    if upload.file == "checkpoint":
        shelf.begin_checkpoint(upload)
    else:
        shelf.save_upload(upload)
    return upload.stored_upload()


def new_upload_row(command: ports.BeginUpload, now: int) -> SQLiteUploadRow:
    """An upload that begins."""
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
        error=None,
        created_at=now,
        expires_at=now + command.lifetime,
    )


def take_uploads(tx: Transaction, commands: Sequence[ports.TakeOverUpload]) -> list[StoredUpload | IngotError]:
    """Give uploads their next writer."""
    return run_all(_load_uploads(tx, commands), _take, commands)


def _take(shelf: BlobBatch, command: ports.TakeOverUpload) -> StoredUpload:
    upload = shelf.get_upload(command.tenant, command.id)
    if upload.state is not UploadState.OPEN:
        raise UploadEnded(f"the upload is {upload.state}")
    upload.epoch += 1
    shelf.save_upload(upload)
    return upload.stored_upload()


def record_upload_progress(
    tx: Transaction, commands: Sequence[ports.RecordUploadProgress]
) -> list[StoredUpload | IngotError]:
    """Keep what writers tell of their uploads."""
    shelf = _load_uploads(tx, commands)
    shelf.load_blobs(command.blob_id for command in commands)
    return run_all(shelf, _record_upload_progress, commands)


def _record_upload_progress(shelf: BlobBatch, command: ports.RecordUploadProgress) -> StoredUpload:
    upload, now = shelf.get_upload(command.tenant, command.id), shelf.tx.now
    _check_writer(upload, command.epoch)
    if command.reserved is not None:
        change = StorageUsage(reserved=command.reserved - upload.reserved)
        charge(shelf.tx, command.tenant, upload.owner, change, quota=command.owner_quota)
        upload.reserved = command.reserved
    if command.received is not None:
        upload.received = command.received
    if command.blob_id not in (None, upload.blob_id):
        shelf.release_announced_blob(upload)
        upload.blob_id = command.blob_id
    upload.sha256 = command.sha256 or upload.sha256
    if command.verifying and upload.state is UploadState.OPEN:
        upload.state, upload.verifying_at = UploadState.VERIFYING, now
    upload.expires_at = now + command.lifetime
    shelf.save_upload(upload)
    return upload.stored_upload()


def _check_writer(upload: SQLiteUploadRow, epoch: int | None) -> None:
    if not upload.is_active:
        raise UploadEnded(f"the upload is {upload.state}")
    if epoch not in (None, upload.epoch):
        raise UploadTaken


def finish_uploads(tx: Transaction, commands: Sequence[ports.FinishUpload]) -> list[FinishedUpload | IngotError]:
    """Make blobs of uploads that have all their bytes."""
    shelf = _load_uploads(tx, commands)
    shelf.load_blobs(command.content.id for command in commands)
    shelf.load_keys((upload.tenant, upload.key) for upload in shelf.uploads.values() if upload.key is not None)
    shelf.load_files(shelf.uploads.values())
    answers = run_all(shelf, _finish, commands)
    release_after_inputs(tx, shelf.jobs_with_input)
    return answers


def _finish(shelf: BlobBatch, command: ports.FinishUpload) -> FinishedUpload:
    upload, content = shelf.get_upload(command.tenant, command.id), command.content
    if upload.state is UploadState.DONE and upload.blob_id == content.id:
        trash_unused_object(shelf, content, shelf.blobs.get(content.id))
        return upload.finished_upload()
    _check_writer(upload, command.epoch)
    if upload.job_id is not None and upload.file == "input":
        shelf.check_blocked(upload.tenant, upload.job_id)
    elif upload.job_id is not None:
        shelf.check_attempt(upload.tenant, upload.job_id, upload.fence)
    shelf.check_stored(content)
    old = None if upload.key is None else shelf.check_key(upload.tenant, upload.key, upload.if_match)
    complete_upload(shelf, upload, content, old, quota=command.owner_quota)
    upload.expires_at = shelf.tx.now + command.lifetime
    shelf.save_upload(upload)
    return upload.finished_upload()


def complete_upload(
    shelf: BlobBatch, upload: SQLiteUploadRow, content: Content, old: KeyRow | None, *, quota: int | None
) -> None:
    """Let the bytes be the blob of an upload, and of its key, or a file of its job.

    Raises `QuotaExceeded`, and has changed nothing then.
    """
    tx = shelf.tx
    change = StorageUsage(bytes=content.size, reserved=-upload.reserved)
    back = None
    if upload.key is not None:
        change += StorageUsage(keys=1, key_bytes=content.size)
        back = None if old is None else (old.owner, StorageUsage(bytes=-old.size, keys=-1, key_bytes=-old.size))
    elif (file := shelf.replaced_file(upload)) is not None:
        back = file.owner, StorageUsage(bytes=-file.size)
    charge(tx, upload.tenant, upload.owner, change, quota=quota, refund=back)
    if upload.blob_id != content.id:
        shelf.release_announced_blob(upload)
    blob = shelf.store_blob(content)
    if upload.storage_key not in (None, blob.storage_key):
        shelf.add_trash(upload.storage_key, upload.multipart)
    upload.state, upload.done_at = UploadState.DONE, tx.now
    upload.blob_id, upload.sha256, upload.size = content.id, content.sha256, content.size
    upload.received, upload.reserved = content.size, 0
    upload.storage_key = upload.multipart = None
    if upload.key is not None:
        shelf.set_key(_key_row(upload, upload.key, blob.number, content, tx.now), replaces=old)
    elif upload.file == "output":
        return  # It is told when its attempt has succeeded.
    elif upload.file is not None:
        shelf.attach_file(upload, blob)
    if upload.file == "checkpoint":
        return  # An attempt may save very often, and nobody but the next one has to know.
    news = BlobEventData(
        blob_id=content.id,
        size=content.size,
        key=upload.key,
        content_type=upload.content_type,
        job_id=upload.job_id,
        name=upload.name,
    )
    tx.effects.events[upload.tenant].append(("blob.stored", news))


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


def trash_unused_object(shelf: BlobBatch, content: Content, blob: BlobRow | None) -> None:
    """What is done already needs no other object: when this one is not the blob's, nobody needs it."""
    if content.storage_key is not None and (blob is None or content.storage_key != blob.storage_key):
        shelf.add_trash(content.storage_key)


def end_uploads(tx: Transaction, commands: Sequence[ports.EndUpload]) -> list[IngotError | None]:
    """End uploads of which nothing comes."""
    shelf = _load_uploads(tx, commands)
    answers = run_all(shelf, _end, commands)
    cancel_without_inputs(tx, shelf.jobs_without_input)
    return answers


def _end(shelf: BlobBatch, command: ports.EndUpload) -> None:
    upload = shelf.uploads.get((command.tenant, command.id))
    if upload is None or upload.state is UploadState.DONE:
        return
    if command.error is None:
        shelf.drop_upload(upload)
    elif upload.is_active:
        shelf.fail_upload(upload, command.error, keep=command.lifetime)


def sweep_uploads(tx: Transaction, command: ports.SweepUploads) -> int:
    """Drop uploads whose time is over, or whose attempt is."""
    pairs = tx.read(list[TenantName], SQL.uploads_to_sweep, tx.now, command.limit)
    cancel_without_inputs(tx, drop_uploads(tx, pairs, "was not finished in time"))
    return len(pairs)


def _load_uploads(
    tx: Transaction,
    commands: Sequence[ports.TakeOverUpload | ports.RecordUploadProgress | ports.FinishUpload | ports.EndUpload],
) -> BlobBatch:
    shelf = BlobBatch(tx)
    shelf.load_uploads((command.tenant, command.id) for command in commands)
    return shelf


def get_upload(reader: Reader, command: ports.GetUpload) -> StoredUpload | None:
    """Find an upload."""
    asked = as_json([(reader.writer_state.number_of(command.tenant), command.id)])
    rows = reader.read(list[SQLiteUploadRow], SQL.uploads_by_id, asked)
    return rows[0].stored_upload() if rows else None


def list_verifying(reader: Reader, command: ports.ListVerifyingUploads) -> list[StoredUpload]:
    """Read which uploads are to be read back."""
    rows = reader.read(list[SQLiteUploadRow], SQL.verifying_uploads, command.limit)
    return [row.stored_upload() for row in rows]
