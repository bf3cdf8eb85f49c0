"""Changes of blobs by several commands: rows are read together, changed in memory, and written together.

Commands run one after another. Each raises before it changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from ingot.blobs.errors import BlobNotFound, KeyChanged, KeyExists, UploadEnded, UploadNotFound
from ingot.blobs.model import BlobEventData, Content, UploadState
from ingot.engines.sqlite.blob_rows import BlobRow, FileRow, KeyRow, SQLiteUploadRow, StorageUsage
from ingot.engines.sqlite.job_rows import JobState
from ingot.engines.sqlite.quota import refund_usage
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
        self.blobs: dict[str, BlobRow] = {}
        self.uploads: dict[TenantName, SQLiteUploadRow] = {}
        self.jobs: dict[str, JobState] = {}
        self.files: dict[JobFileKey, FileRow] = {}
        self.jobs_with_input: dict[int, None] = {}  # Numbers of jobs that got an input.
        self.jobs_without_input: dict[str, str] = {}  # Why jobs will not get an input, by job ID.
        self._outputs: dict[tuple[str, int], int] = {}
        self._checkpoints: dict[str, set[str | None]] = {}  # Names by job ID, including unfinished uploads.
        self._next_blob: int | None = None
        self._changed_keys: dict[TenantName, None] = {}
        self._changed_uploads: dict[TenantName, None] = {}
        self._new_blobs: list[tuple[object, ...]] = []
        self._new_bytes: list[tuple[int, bytes]] = []
        self._new_checksums: list[tuple[int, bytes]] = []
        self._tombstones: dict[int, None] = {}
        self._trash: dict[str, str | None] = {}
        self._new_files: dict[JobFileKey, tuple[object, ...]] = {}

    # -- reading --------------------------------------------------------------------------------------------

    def load_uploads(self, pairs: Iterable[TenantName]) -> None:
        """Read these uploads, with their blobs and jobs."""
        for upload in self.tx.read(list[SQLiteUploadRow], SQL.uploads_by_id, self._numbered_json(pairs)):
            self.uploads[upload.tenant, upload.id] = upload
        self.load_jobs(upload.job_id for upload in self.uploads.values())
        self.load_blobs(upload.blob_id for upload in self.uploads.values())

    def load_keys(self, pairs: Iterable[TenantName]) -> None:
        """Read these keys."""
        for key in self.tx.read(list[KeyRow], SQL.keys_by_name, self._numbered_json(pairs)):
            self.keys[key.tenant, key.key] = key

    def load_blobs(self, ids: Iterable[str | None]) -> None:
        """Read those of these blobs that exist."""
        if missing_ids := {id for id in ids if id is not None} - self.blobs.keys():
            for blob in self.tx.read(list[BlobRow], SQL.blobs_by_id, as_json(sorted(missing_ids))):
                self.blobs[blob.id] = blob

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

    def check_stored(self, content: Content) -> None:
        """Raise `BlobNotFound` if the content has no bytes and no blob with its ID is stored."""
        if content.storage_key is None and content.inline is None and content.id not in self.blobs:
            raise BlobNotFound(f"there is no blob {content.id}")

    def replaced_file(self, upload: SQLiteUploadRow) -> FileRow | None:
        """Return the file of the job that an upload replaces."""
        return self.files.get(self._file_key(upload)) if upload.file in REPLACING_KINDS else None

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

    def store_blob(self, content: Content) -> BlobRow:
        """Return the stored blob with these bytes, or create it. A second object with these bytes goes to the trash."""
        blob = self.blobs.get(content.id)
        if blob is None:
            blob = BlobRow(self._next_blob_number(), content.id, content.size, content.storage_key, damaged=False)
            self.blobs[content.id] = blob
            row = (blob.number, bytes.fromhex(content.id), bytes.fromhex(content.sha256), content.size)
            self._new_blobs.append((*row, content.storage_key, False, self.tx.now))
            self._add_bytes(blob.number, content)
            self.tx.effects.blob_totals["blobs"] += 1
            self.tx.effects.blob_totals["bytes"] += content.size
        elif blob.damaged and (content.storage_key is not None or content.inline is not None):
            self._repair(blob, content)
        elif content.storage_key is not None and content.storage_key != blob.storage_key:
            self.add_trash(content.storage_key)
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

    def _repair(self, blob: BlobRow, content: Content) -> None:
        """Replace the bytes of a damaged blob."""
        if blob.storage_key is not None and blob.storage_key != content.storage_key:
            self.add_trash(blob.storage_key)
        self.tx.execute(SQL.repair_blob, blob.number, content.storage_key, self.tx.now)
        self.tx.execute(SQL.remove_blob_bytes, blob.number)
        self.tx.execute(SQL.remove_blob_checks, blob.number)
        self._add_bytes(blob.number, content)
        blob.storage_key, blob.damaged = content.storage_key, False

    def set_key(self, key: KeyRow, *, replaces: KeyRow | None) -> None:
        """Set a key. The blob that it referred to gets a tombstone."""
        self.keys[key.tenant, key.key] = key
        self._changed_keys[key.tenant, key.key] = None
        if replaces is not None:
            self.add_tombstone(replaces.blob)

    def drop_key(self, key: KeyRow) -> None:
        """Delete a key: usage decreases, its blob gets a tombstone, and an event is appended."""
        refund_usage(self.tx, key.tenant, key.owner, StorageUsage(bytes=key.size, keys=1, key_bytes=key.size))
        del self.keys[key.tenant, key.key]
        self._changed_keys[key.tenant, key.key] = None
        self.add_tombstone(key.blob)
        event_data = BlobEventData(blob_id=key.blob_id, size=key.size, key=key.key, content_type=key.content_type)
        self.tx.effects.events[key.tenant].append(("blob.deleted", event_data))

    def attach_file(self, upload: SQLiteUploadRow, blob: BlobRow) -> None:
        """Make a blob the job file that its upload was for."""
        file_key, now = self._file_key(upload), self.tx.now
        if (replaced := self.files.get(file_key)) is not None:
            self.add_tombstone(replaced.blob)
        self.files[file_key] = FileRow(*file_key, upload.owner, blob.number, blob.size)
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
        if upload.storage_key is not None:
            self.add_trash(upload.storage_key, upload.multipart)
        self.release_announced_blob(upload)

    def release_announced_blob(self, upload: SQLiteUploadRow) -> None:
        """Remove the reference of an upload to its blob, if that exists."""
        if upload.references_blob and upload.blob_id in self.blobs:
            self.add_tombstone(self.blobs[upload.blob_id].number)

    def add_tombstone(self, blob: int) -> None:
        """Record that a blob lost a reference."""
        self._tombstones[blob] = None

    def add_trash(self, storage_key: str, multipart: str | None = None) -> None:
        """Put an object into the trash."""
        self._trash[storage_key] = multipart or self._trash.get(storage_key)

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
        tx.write_rows(SQL.put_tombstones, [(blob, tx.now) for blob in self._tombstones])
        tx.write_rows(SQL.insert_trash, list(self._trash.items()))

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
