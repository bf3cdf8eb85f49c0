"""Changes of blobs by several commands: rows are read together, changed in memory, and written together.

Commands run one after another. Each raises before it changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from ingot.blobs.errors import BlobNotFound, KeyChanged, KeyExists, TooManyUploads, UploadEnded, UploadNotFound
from ingot.blobs.model import BlobEventData, Content, UploadState
from ingot.engines.sqlite.blob_rows import BlobRow, FileRow, KeyRow, SQLiteUploadRow, StorageUsage, TrashRow
from ingot.engines.sqlite.job_rows import JobState
from ingot.engines.sqlite.quota import add_deleted, bury, refund_usage
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.identity.model import TenantNotFound
from ingot.jobs.errors import LeaseLost
from ingot.jobs.model import JobStatus
from ingot.kernel.errors import IngotError, InvalidInput

TenantName = tuple[str, str]  # A tenant, and a key or the ID of an upload in it.
JobFileKey = tuple[int, str, str]  # The number of a job, and the kind and name of one of its files.
REPLACING_KINDS: Final = ("log", "checkpoint")  # Kinds of files that replace the file of the same name at once.
C = TypeVar("C")
R = TypeVar("R")


class BlobBatch:
    """The keys, blobs, uploads, jobs and files that commands use, with their changes in this transaction."""

    def __init__(self, tx: Transaction) -> None:
        self.tx = tx
        self.keys: dict[TenantName, KeyRow] = {}
        self.blobs: dict[TenantName, BlobRow] = {}
        self.uploads: dict[TenantName, SQLiteUploadRow] = {}
        self.jobs: dict[str, JobState] = {}
        self.files: dict[JobFileKey, FileRow] = {}
        self.jobs_with_input: dict[int, None] = {}  # Numbers of jobs that got an input.
        self.jobs_without_input: dict[str, str] = {}  # Why jobs will not get an input, by job ID.
        self.unfinished_uploads: dict[str, int] = {}  # By tenant, with those that this batch begins.
        self._outputs: dict[tuple[str, int], int] = {}
        self._checkpoints: dict[str, set[str | None]] = {}  # Names by job ID, including unfinished uploads.
        self._next_blob: int | None = None
        self._changed_keys: dict[TenantName, None] = {}
        self._changed_uploads: dict[TenantName, None] = {}
        self._new_blobs: list[tuple[object, ...]] = []
        self._new_bytes: list[tuple[int, bytes]] = []
        self._new_checksums: list[tuple[int, bytes]] = []
        # The tenant and owner of a removed reference, and the deleted bytes counted for it so far, by blob.
        self._dropped: dict[int, tuple[str, str, int]] = {}
        self._restored_blobs: list[int] = []  # Blobs with a tombstone that have a reference again.
        self._trash: dict[str, TrashRow] = {}
        self._new_files: dict[JobFileKey, tuple[object, ...]] = {}

    # -- reading --------------------------------------------------------------------------------------------

    def load_uploads(self, pairs: Iterable[TenantName]) -> None:
        """Read these uploads, with their blobs and jobs."""
        for upload in self.tx.read(list[SQLiteUploadRow], SQL.uploads_by_id, self._numbered_json(pairs)):
            self.uploads[upload.tenant, upload.id] = upload
        self.load_jobs(upload.job_id for upload in self.uploads.values())
        self.load_blobs((upload.tenant, upload.blob_id) for upload in self.uploads.values())

    def load_keys(self, pairs: Iterable[TenantName]) -> None:
        """Read these keys."""
        for key in self.tx.read(list[KeyRow], SQL.keys_by_name, self._numbered_json(pairs)):
            self.keys[key.tenant, key.key] = key

    def load_blobs(self, pairs: Iterable[tuple[str, str | None]]) -> None:
        """Read those of these blobs of tenants that exist."""
        missing = {(tenant, id) for tenant, id in pairs if id is not None} - self.blobs.keys()
        if missing:
            for blob in self.tx.read(list[BlobRow], SQL.blobs_by_id, self._numbered_json(sorted(missing))):
                self.blobs[blob.tenant, blob.id] = blob

    def load_jobs(self, ids: Iterable[str | None]) -> None:
        """Read the states of these jobs."""
        if missing_ids := {id for id in ids if id is not None} - self.jobs.keys():
            self.jobs |= self.tx.job_states(sorted(missing_ids))

    def load_files(self, uploads: Iterable[SQLiteUploadRow]) -> None:
        """Read the files that these uploads would replace."""
        file_keys = [
            self._file_key(upload)
            for upload in uploads
            if upload.file in REPLACING_KINDS and upload.job_id in self.jobs
        ]
        if file_keys:
            for file in self.tx.read(list[FileRow], SQL.files_by_name, as_json(file_keys)):
                self.files[file.job, file.kind, file.name] = file

    def _file_key(self, upload: SQLiteUploadRow) -> JobFileKey:
        assert upload.job_id is not None, "an upload of a job file has a job"
        return self.jobs[upload.job_id].number, upload.file or "", upload.name or ""

    def _numbered_json(self, pairs: Iterable[TenantName]) -> str:
        numbers = self.tx.writer_state.tenant_numbers
        return as_json([(numbers[tenant], name) for tenant, name in dict.fromkeys(pairs) if tenant in numbers])

    # -- checking -------------------------------------------------------------------------------------------

    def get_upload(self, tenant: str, id: str) -> SQLiteUploadRow:
        """Return an upload. Raises `UploadNotFound`."""
        upload = self.uploads.get((tenant, id))
        if upload is None:
            raise UploadNotFound(f"there is no upload {id[:64]!r}")
        return upload

    def check_key(self, tenant: str, key: str, if_match: str | None) -> KeyRow | None:
        """Return the row of a key that will be set. Raises `KeyExists` or `KeyChanged` if `if_match` does not fit."""
        current = self.keys.get((tenant, key))
        if if_match is None and current is not None:
            raise KeyExists.for_key(key)
        if if_match not in (None, "*") and (current is None or current.blob_id != if_match):
            raise KeyChanged
        return current

    def check_attempt(self, tenant: str, job_id: str, fence: int | None) -> None:
        """Raise `LeaseLost` unless the job runs in this tenant under this fence."""
        job = self.jobs.get(job_id)
        if job is None or job.tenant != tenant or job.status is not JobStatus.RUNNING or job.fence != fence:
            raise LeaseLost("the job is not running under this fence")

    def check_blocked(self, tenant: str, job_id: str) -> None:
        """Raise `UploadEnded` unless the job in this tenant is blocked."""
        job = self.jobs.get(job_id)
        if job is None or job.tenant != tenant or job.status is not JobStatus.BLOCKED:
            raise UploadEnded("the job no longer waits for this upload")

    def check_stored(self, tenant: str, content: Content) -> None:
        """Raise `BlobNotFound` if the content has no bytes and the tenant has no blob with its ID."""
        if content.storage_key is None and content.inline is None and (tenant, content.id) not in self.blobs:
            raise BlobNotFound(f"there is no blob {content.id}")

    def deletes_blob(self, number: int, tenant: str, blob_id: str) -> bool:
        """Return whether a blob is deleted together with one of its references, because it has no other one.

        The bytes of a blob that lost a reference in this batch are counted already.
        """
        if number in self._dropped:
            return False
        holder = self.tx.writer_state.tenant_numbers[tenant]
        return bool(self.tx.execute(SQL.has_one_reference, number, bytes.fromhex(blob_id), holder).get)

    def replaced_file(self, upload: SQLiteUploadRow) -> FileRow | None:
        """Return the file of the job that an upload replaces."""
        return self.files.get(self._file_key(upload)) if upload.file in REPLACING_KINDS else None

    def check_unfinished_uploads(self, tenant: str, uploads_max: int) -> None:
        """Raise `TooManyUploads` if the tenant has this many unfinished uploads."""
        if tenant not in self.unfinished_uploads:
            number = self.tx.writer_state.number_of(tenant)
            self.unfinished_uploads[tenant] = self.tx.execute(SQL.count_unfinished_uploads, number, uploads_max).get
        if self.unfinished_uploads[tenant] >= uploads_max:
            raise TooManyUploads(f"a tenant can have at most {uploads_max} unfinished uploads")

    def count_output(self, job_id: str, fence: int | None, outputs_max: int) -> None:
        """Count one more output of an attempt. Raises `InvalidInput` above the limit."""
        assert fence is not None, "an upload of an attempt has a fence"
        if (job_id, fence) not in self._outputs:
            self._outputs[job_id, fence] = self.tx.execute(SQL.count_outputs, job_id, fence).get
        if self._outputs[job_id, fence] >= outputs_max:
            raise InvalidInput(
                f"an attempt must have at most {outputs_max} outputs", hint="Combine several files into one."
            )
        self._outputs[job_id, fence] += 1

    def check_checkpoint(self, job_id: str, fence: int | None, name: str | None, checkpoints_max: int) -> None:
        """Raise `InvalidInput` if a checkpoint with a new name would exceed the limit of the job."""
        assert fence is not None, "an upload of an attempt has a fence"
        if job_id not in self._checkpoints:
            names = self.tx.read(list[str], SQL.names_of_checkpoints, self.jobs[job_id].number, job_id, fence)
            self._checkpoints[job_id] = {*names}
        checkpoints = self._checkpoints[job_id]
        if name not in checkpoints and len(checkpoints) >= checkpoints_max:
            raise InvalidInput(
                f"a job must have at most {checkpoints_max} checkpoints",
                hint="Reuse the name of one that is not needed.",
            )

    # -- changing -------------------------------------------------------------------------------------------

    def store_blob(self, upload: SQLiteUploadRow, content: Content) -> BlobRow:
        """Return the stored blob with these bytes, or create it. A second object with these bytes goes to the trash."""
        tenant, sent_until = upload.tenant, 0
        if content.storage_key is not None and content.storage_key == upload.storage_key:
            sent_until = upload.sent_until(self.tx.now)
        blob = self.blobs.get((tenant, content.id))
        if blob is None:
            number, holder = self._next_blob_number(), self.tx.writer_state.tenant_numbers[tenant]
            blob = BlobRow(number, tenant, content.id, content.size, content.storage_key, False, sent_until)
            self.blobs[tenant, content.id] = blob
            row = (number, holder, bytes.fromhex(content.id), bytes.fromhex(content.sha256), content.size)
            self._new_blobs.append((*row, content.storage_key, False, self.tx.now, content.etag, sent_until))
            self._add_bytes(number, content)
            self.tx.effects.blob_totals["blobs"] += 1
            self.tx.effects.blob_totals["bytes"] += content.size
            return blob
        if blob.deleted_by is not None:  # The caller has subtracted its deleted bytes.
            blob.deleted_by = None
            self._restored_blobs.append(blob.number)
        if blob.damaged and (content.storage_key is not None or content.inline is not None):
            self._repair(blob, content, upload.owner, sent_until)
        elif content.storage_key is not None and content.storage_key != blob.storage_key:
            self.add_trash(TrashRow(content.storage_key, None, tenant, upload.owner, content.size, sent_until))
        return blob

    def _next_blob_number(self) -> int:
        number: int = self._next_blob or self.tx.execute(SQL.last_blob_number).get + 1
        self._next_blob = number + 1
        return number

    def _add_bytes(self, number: int, content: Content) -> None:
        if content.inline is not None:
            self._new_bytes.append((number, content.inline))
        if content.part_checksums:
            self._new_checksums.append((number, content.part_checksums))

    def _repair(self, blob: BlobRow, content: Content, owner: str, sent_until: int) -> None:
        """Replace the bytes of a damaged blob."""
        if blob.storage_key not in (None, content.storage_key) and not self._is_shared(blob):
            self.add_trash(TrashRow(blob.storage_key, None, blob.tenant, owner, blob.size, blob.sent_until))
        values = content.storage_key, self.tx.now, content.etag, sent_until
        self.tx.execute(SQL.repair_blob, blob.number, *values)
        self.tx.execute(SQL.remove_blob_bytes, blob.number)
        self.tx.execute(SQL.remove_blob_checks, blob.number)
        self._add_bytes(blob.number, content)
        blob.storage_key, blob.damaged, blob.sent_until = content.storage_key, False, sent_until

    def _is_shared(self, blob: BlobRow) -> bool:
        return bool(self.tx.execute(SQL.is_object_shared, blob.storage_key, blob.number).get)

    def set_key(self, key: KeyRow) -> None:
        """Set a key."""
        self.keys[key.tenant, key.key] = key
        self._changed_keys[key.tenant, key.key] = None

    def drop_key(self, key: KeyRow) -> None:
        """Delete a key and its reference, and append an event."""
        refund_usage(self.tx, key.tenant, key.owner, StorageUsage(bytes=key.size, keys=1, key_bytes=key.size))
        del self.keys[key.tenant, key.key]
        self._changed_keys[key.tenant, key.key] = None
        self.drop_reference(key.blob, key.tenant, key.owner, key.size)
        event_data = BlobEventData(blob_id=key.blob_id, size=key.size, key=key.key, content_type=key.content_type)
        self.tx.effects.events[key.tenant].append(("blob.deleted", event_data))

    def attach_file(self, upload: SQLiteUploadRow, blob: BlobRow) -> None:
        """Make a blob the job file that its upload was for."""
        file_key, now = self._file_key(upload), self.tx.now
        self.files[file_key] = FileRow(*file_key, upload.owner, blob.number, blob.id, blob.size)
        values = blob.number, upload.content_type, upload.owner, upload.fence, now
        self._new_files[file_key] = (self.tx.writer_state.tenant_numbers[upload.tenant], *file_key, *values)
        if upload.file == "input":
            self.tx.execute(SQL.set_input, file_key[0], upload.name, blob.id)
            self.jobs_with_input[file_key[0]] = None

    def begin_checkpoint(self, upload: SQLiteUploadRow) -> None:
        """Store the upload of a checkpoint, and remove finished ones of the same name and attempt."""
        assert upload.job_id is not None, "an upload of a job file has a job"
        self._checkpoints[upload.job_id].add(upload.name)
        self.tx.execute(SQL.remove_finished_checkpoint_uploads, upload.job_id, upload.fence, upload.name)
        self.save_upload(upload)

    def save_upload(self, upload: SQLiteUploadRow) -> None:
        """Store an upload in its present state."""
        self.uploads[upload.tenant, upload.id] = upload
        self._changed_uploads[upload.tenant, upload.id] = None

    def drop_upload(self, upload: SQLiteUploadRow, reason: str = "was canceled") -> None:
        """Remove an upload with its reference and its reservation."""
        self._release_upload(upload, reason)
        del self.uploads[upload.tenant, upload.id]
        self._changed_uploads[upload.tenant, upload.id] = None

    def fail_upload(self, upload: SQLiteUploadRow, error: str, *, keep: int) -> None:
        """Mark an upload as failed, and keep it for `keep` microseconds."""
        self._release_upload(upload, f"failed: {error}")
        upload.state, upload.error = UploadState.FAILED, error
        upload.reserved, upload.storage_key, upload.multipart = 0, None, None
        upload.expires_at = self.tx.now + keep
        self.save_upload(upload)

    def _release_upload(self, upload: SQLiteUploadRow, reason: str) -> None:
        if upload.file == "input" and upload.is_active and upload.job_id is not None:
            self.jobs_without_input.setdefault(upload.job_id, f"the upload of {upload.name} {reason}")
        refund_usage(self.tx, upload.tenant, upload.owner, upload.usage)
        self.trash_object(upload, upload.reserved)
        blob = self.blobs.get((upload.tenant, upload.blob_id or ""))
        if upload.owns_blob and blob is not None:
            self.drop_reference(blob.number, upload.tenant, upload.owner, blob.size)

    def drop_reference(self, blob: int, tenant: str, owner: str, size: int, *, count: bool = True) -> None:
        """Record that a blob lost a reference. If it was the last one, its bytes count as deleted bytes of the owner.

        Until the batch is written, it is assumed to be the last one. Without `count`, the caller has counted the bytes.
        Of several owners that lost references in one batch, the first by name owns the bytes.
        """
        if blob not in self._dropped:
            self._dropped[blob] = (tenant, owner, size)
            if count:
                add_deleted(self.tx, tenant, owner, size)
        elif owner < (dropped := self._dropped[blob])[1]:
            _, earlier_owner, counted_size = dropped
            add_deleted(self.tx, tenant, earlier_owner, -counted_size)
            add_deleted(self.tx, tenant, owner, counted_size)
            self._dropped[blob] = (tenant, owner, counted_size)

    def trash_object(self, upload: SQLiteUploadRow, size: int) -> None:
        """Put the object of an upload into the trash, if it has one. Clients may still have URLs to send it."""
        if upload.storage_key is not None:
            sent_until = 0 if upload.multipart is not None else upload.sent_until(self.tx.now)
            values = upload.tenant, upload.owner, size, sent_until
            self.add_trash(TrashRow(upload.storage_key, upload.multipart, *values))

    def add_trash(self, row: TrashRow) -> None:
        """Put an object into the trash. Its size counts as deleted bytes until it is gone."""
        if row.storage_key not in self._trash:
            self._trash[row.storage_key] = row
            add_deleted(self.tx, row.tenant, row.owner, row.size)
        elif row.multipart is not None:
            self._trash[row.storage_key] = msgspec.structs.replace(
                self._trash[row.storage_key], multipart=row.multipart
            )

    # -- writing --------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Write all changes."""
        tx = self.tx
        tx.write_rows(SQL.insert_blobs, self._new_blobs)
        tx.write_rows(SQL.insert_blob_bytes, self._new_bytes)
        tx.write_rows(SQL.insert_blob_checks, self._new_checksums)
        self._write_changes(self._changed_keys, self.keys, SQL.put_keys, SQL.remove_keys, self._key_row)
        self._write_changes(self._changed_uploads, self.uploads, SQL.put_uploads, SQL.remove_uploads, self._upload_row)
        tx.write_rows(SQL.put_job_files, list(self._new_files.values()))
        tx.write_rows(SQL.insert_trash, [self._trash_row(row) for row in self._trash.values()])
        for number in self._restored_blobs:
            tx.execute(SQL.remove_tombstone, number)
        for tenant, owner, size in self._dropped.values():
            add_deleted(tx, tenant, owner, -size)
        bury(tx, {blob: owner for blob, (_, owner, _) in self._dropped.items()})

    def _write_changes(
        self,
        changed: Iterable[TenantName],
        rows: dict[TenantName, R],
        put: str,
        remove: str,
        row: Callable[[R], tuple[object, ...]],
    ) -> None:
        removed = [pair for pair in changed if pair not in rows]
        self.tx.write_rows(put, [row(rows[pair]) for pair in changed if pair in rows])
        if removed:
            self.tx.execute(remove, self._numbered_json(removed))

    def _trash_row(self, row: TrashRow) -> tuple[object, ...]:
        tenant = None if row.tenant is None else self.tx.writer_state.tenants.get(row.tenant)
        return row.storage_key, row.multipart, tenant, row.owner, row.size, row.sent_until

    def _key_row(self, key: KeyRow) -> tuple[object, ...]:
        values = key.content_type, key.original_name, key.owner, key.uploaded_at, key.upload
        return self.tx.writer_state.tenant_numbers[key.tenant], key.key, key.blob, *values

    def _upload_row(self, upload: SQLiteUploadRow) -> tuple[object, ...]:
        tenant, *values = msgspec.structs.astuple(
            msgspec.structs.replace(upload, blob_id=_digest_bytes(upload.blob_id), sha256=_digest_bytes(upload.sha256))
        )
        return self.tx.writer_state.tenant_numbers[tenant], *values


def _digest_bytes(digest: str | None) -> bytes | None:
    return None if digest is None else bytes.fromhex(digest)


def run_all(batch: BlobBatch, run: Callable[[BlobBatch, C], R], commands: Sequence[C]) -> list[R | IngotError]:
    """Run commands one after another, and write their changes."""
    answers: list[R | IngotError] = []
    for command in commands:
        tenant: str = command.tenant  # type: ignore[attr-defined]
        try:
            if tenant not in batch.tx.writer_state.tenants:
                raise TenantNotFound(f"there is no tenant {tenant[:64]!r}")
            answers.append(run(batch, command))
        except IngotError as error:
            answers.append(error)
    batch.write()
    return answers
