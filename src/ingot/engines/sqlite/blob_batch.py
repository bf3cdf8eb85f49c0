"""What some commands look at and change about blobs: read at once, changed in memory, and written together.

A command is run on it whole before the next one, and raises before it changes anything.
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

TenantName = tuple[str, str]  # A tenant, and a key or an id in it.
JobFileKey = tuple[int, str, str]  # The number of a job, and the kind and the name of a file of it.
REPLACING_KINDS: Final = ("log", "checkpoint")  # Kinds of files that take the place of one with their name at once.
C = TypeVar("C")
R = TypeVar("R")


class BlobBatch:
    """The keys, blobs and uploads that are asked for, as they stand within the transaction."""

    def __init__(self, tx: Transaction) -> None:
        self.tx = tx
        self.keys: dict[TenantName, KeyRow] = {}
        self.blobs: dict[str, BlobRow] = {}
        self.uploads: dict[TenantName, SQLiteUploadRow] = {}
        self.jobs: dict[str, JobState] = {}
        self.files: dict[JobFileKey, FileRow] = {}
        self.jobs_with_input: dict[int, None] = {}  # Jobs that got an input, by number.
        self.jobs_without_input: dict[str, str] = {}  # Jobs that will not get one, by id, and why.
        self._outputs: dict[tuple[str, int], int] = {}
        self._checkpoints: dict[str, set[str | None]] = {}  # The names of those of a job, and of those to come.
        self._next_blob: int | None = None
        self._changed_keys: dict[TenantName, None] = {}
        self._changed_uploads: dict[TenantName, None] = {}
        self._new_blobs: list[tuple[object, ...]] = []
        self._new_bytes: list[tuple[int, bytes]] = []
        self._new_checks: list[tuple[int, bytes]] = []
        self._tombstones: dict[int, None] = {}
        self._trash: dict[str, str | None] = {}
        self._new_files: dict[JobFileKey, tuple[object, ...]] = {}

    # -- reading --------------------------------------------------------------------------------------------

    def load_uploads(self, pairs: Iterable[TenantName]) -> None:
        """Read these uploads, what they are about, and the jobs that they are for."""
        for upload in self.tx.read(list[SQLiteUploadRow], SQL.uploads_by_id, self._numbered_json(pairs)):
            self.uploads[upload.tenant, upload.id] = upload
        self.load_jobs(upload.job_id for upload in self.uploads.values())
        self.load_blobs(upload.blob_id for upload in self.uploads.values())

    def load_keys(self, pairs: Iterable[TenantName]) -> None:
        """Read these keys."""
        for key in self.tx.read(list[KeyRow], SQL.keys_by_name, self._numbered_json(pairs)):
            self.keys[key.tenant, key.key] = key

    def load_blobs(self, ids: Iterable[str | None]) -> None:
        """Read what is here of these blobs."""
        if asked := {id for id in ids if id is not None} - self.blobs.keys():
            for blob in self.tx.read(list[BlobRow], SQL.blobs_by_id, as_json(sorted(asked))):
                self.blobs[blob.id] = blob

    def load_jobs(self, ids: Iterable[str | None]) -> None:
        """Read how these jobs stand."""
        if asked := {id for id in ids if id is not None} - self.jobs.keys():
            self.jobs |= self.tx.job_states(sorted(asked))

    def load_files(self, uploads: Iterable[SQLiteUploadRow]) -> None:
        """Read the files whose place these uploads would take."""
        file_keys = [self._file_key(one) for one in uploads if one.file in REPLACING_KINDS and one.job_id in self.jobs]
        if file_keys:
            for file in self.tx.read(list[FileRow], SQL.files_by_name, as_json(file_keys)):
                self.files[file.job, file.kind, file.name] = file

    def _file_key(self, upload: SQLiteUploadRow) -> JobFileKey:
        assert upload.job_id is not None, "a file of a job is that of one"
        return self.jobs[upload.job_id].number, upload.file or "", upload.name or ""

    def _numbered_json(self, pairs: Iterable[TenantName]) -> str:
        numbers = self.tx.writer_state.tenant_numbers
        return as_json([(numbers[tenant], name) for tenant, name in dict.fromkeys(pairs) if tenant in numbers])

    # -- asking ---------------------------------------------------------------------------------------------

    def get_upload(self, tenant: str, id: str) -> SQLiteUploadRow:
        """An upload that is there. Raises `UploadNotFound`."""
        found = self.uploads.get((tenant, id))
        if found is None:
            raise UploadNotFound(f"there is no upload {id[:64]!r} in this tenant")
        return found

    def check_key(self, tenant: str, key: str, if_match: str | None) -> KeyRow | None:
        """What is under a key that is to be set. Raises `KeyExists` or `KeyChanged` unless it is what it has to be."""
        known = self.keys.get((tenant, key))
        if if_match is None and known is not None:
            raise KeyExists.for_key(key)
        if if_match not in (None, "*") and (known is None or known.blob_id != if_match):
            raise KeyChanged
        return known

    def check_attempt(self, tenant: str, job_id: str, fence: int | None) -> None:
        """Raise `LeaseLost` unless the job runs in this tenant under this fence."""
        job = self.jobs.get(job_id)
        if job is None or job.tenant != tenant or job.status is not JobStatus.RUNNING or job.fence != fence:
            raise LeaseLost("the job does not run under this fence now")

    def check_blocked(self, tenant: str, job_id: str) -> None:
        """Raise `UploadEnded` unless the job waits in this tenant for inputs."""
        job = self.jobs.get(job_id)
        if job is None or job.tenant != tenant or job.status is not JobStatus.BLOCKED:
            raise UploadEnded("the job waits for it no more")

    def check_stored(self, content: Content) -> None:
        """Raise `BlobNotFound` for bytes that are said to be here, and are not."""
        if content.storage_key is None and content.inline is None and content.id not in self.blobs:
            raise BlobNotFound(f"there is no blob {content.id} here")

    def replaced_file(self, upload: SQLiteUploadRow) -> FileRow | None:
        """The file of the job whose place this one takes."""
        return self.files.get(self._file_key(upload)) if upload.file in REPLACING_KINDS else None

    def count_output(self, job_id: str, fence: int | None, most: int) -> None:
        """One more output of an attempt. Raises `InvalidInput` when those are enough."""
        assert fence is not None, "it runs under it"
        if (job_id, fence) not in self._outputs:
            self._outputs[job_id, fence] = self.tx.execute(SQL.count_outputs, job_id, fence).get
        if self._outputs[job_id, fence] >= most:
            raise InvalidInput(f"an attempt makes up to {most} outputs", hint="Put several files into one.")
        self._outputs[job_id, fence] += 1

    def check_checkpoint(self, job_id: str, fence: int | None, name: str | None, most: int) -> None:
        """Raise `InvalidInput` for one more checkpoint of a job when those are enough, unless one has its name."""
        assert fence is not None, "it runs under it"
        if job_id not in self._checkpoints:
            names = self.tx.read(list[str], SQL.names_of_checkpoints, self.jobs[job_id].number, job_id, fence)
            self._checkpoints[job_id] = {*names}
        known = self._checkpoints[job_id]
        if name not in known and len(known) >= most:
            raise InvalidInput(f"a job has up to {most} checkpoints", hint="Save over one that is not needed any more.")

    # -- changing -------------------------------------------------------------------------------------------

    def store_blob(self, content: Content) -> BlobRow:
        """The blob with these bytes: the one that is here, or a new one. Of two objects one goes to the trash."""
        known = self.blobs.get(content.id)
        if known is None:
            known = BlobRow(self._next_blob_number(), content.id, content.size, content.storage_key, damaged=False)
            self.blobs[content.id] = known
            row = (known.number, bytes.fromhex(content.id), bytes.fromhex(content.sha256), content.size)
            self._new_blobs.append((*row, content.storage_key, False, self.tx.now))
            self._add_bytes(known.number, content)
            self.tx.effects.blob_totals["blobs"] += 1
            self.tx.effects.blob_totals["bytes"] += content.size
        elif known.damaged and (content.storage_key is not None or content.inline is not None):
            self._repair(known, content)
        elif content.storage_key is not None and content.storage_key != known.storage_key:
            self.add_trash(content.storage_key)
        return known

    def _next_blob_number(self) -> int:
        number: int = self._next_blob or self.tx.execute(SQL.last_blob_number).get + 1
        self._next_blob = number + 1
        return number

    def _add_bytes(self, number: int, content: Content) -> None:
        if content.inline is not None:
            self._new_bytes.append((number, content.inline))
        if content.part_checksums:
            self._new_checks.append((number, content.part_checksums))

    def _repair(self, blob: BlobRow, content: Content) -> None:
        """Let new bytes take the place of those that are damaged."""
        if blob.storage_key is not None and blob.storage_key != content.storage_key:
            self.add_trash(blob.storage_key)
        self.tx.execute(SQL.repair_blob, blob.number, content.storage_key, self.tx.now)
        self.tx.execute(SQL.remove_blob_bytes, blob.number)
        self.tx.execute(SQL.remove_blob_checks, blob.number)
        self._add_bytes(blob.number, content)
        blob.storage_key, blob.damaged = content.storage_key, False

    def set_key(self, key: KeyRow, *, replaces: KeyRow | None) -> None:
        """Put a blob under a key; what was there is no longer."""
        self.keys[key.tenant, key.key] = key
        self._changed_keys[key.tenant, key.key] = None
        if replaces is not None:
            self.add_tombstone(replaces.blob)

    def drop_key(self, key: KeyRow) -> None:
        """A key is no more: what it counted for is given back, its blob gets a tombstone, and it is told."""
        refund_usage(self.tx, key.tenant, key.owner, StorageUsage(bytes=key.size, keys=1, key_bytes=key.size))
        del self.keys[key.tenant, key.key]
        self._changed_keys[key.tenant, key.key] = None
        self.add_tombstone(key.blob)
        news = BlobEventData(blob_id=key.blob_id, size=key.size, key=key.key, content_type=key.content_type)
        self.tx.effects.events[key.tenant].append(("blob.deleted", news))

    def attach_file(self, upload: SQLiteUploadRow, blob: BlobRow) -> None:
        """Let a blob be the file of a job that its upload was for."""
        file_key, now = self._file_key(upload), self.tx.now
        if (old := self.files.get(file_key)) is not None:
            self.add_tombstone(old.blob)
        self.files[file_key] = FileRow(*file_key, upload.owner, blob.number, blob.size)
        described = blob.number, upload.content_type, upload.owner, upload.fence, now
        self._new_files[file_key] = (self.tx.writer_state.tenant_numbers[upload.tenant], *file_key, *described)
        if upload.file == "input":
            self.tx.execute(SQL.set_input, file_key[0], upload.name, blob.id)
            self.jobs_with_input[file_key[0]] = None

    def begin_checkpoint(self, upload: SQLiteUploadRow) -> None:
        """Keep an upload of a checkpoint that was checked, and forget one that its attempt has finished before."""
        assert upload.job_id is not None, "a file of a job is that of one"
        self._checkpoints[upload.job_id].add(upload.name)
        self.tx.execute(SQL.remove_finished_checkpoint_uploads, upload.job_id, upload.fence, upload.name)
        self.save_upload(upload)

    def save_upload(self, upload: SQLiteUploadRow) -> None:
        """Keep an upload as it is now."""
        self.uploads[upload.tenant, upload.id] = upload
        self._changed_uploads[upload.tenant, upload.id] = None

    def drop_upload(self, upload: SQLiteUploadRow, why: str = "was given up") -> None:
        """An upload is no more, nor what it referred to or had set aside."""
        self._release_upload(upload, why)
        del self.uploads[upload.tenant, upload.id]
        self._changed_uploads[upload.tenant, upload.id] = None

    def fail_upload(self, upload: SQLiteUploadRow, error: str, *, keep: int) -> None:
        """Nothing comes of an upload, and that is kept."""
        self._release_upload(upload, f"failed: {error}")
        upload.state, upload.error = UploadState.FAILED, error
        upload.reserved, upload.storage_key, upload.multipart = 0, None, None
        upload.expires_at = self.tx.now + keep
        self.save_upload(upload)

    def _release_upload(self, upload: SQLiteUploadRow, why: str) -> None:
        if upload.file == "input" and upload.is_active and upload.job_id is not None:
            self.jobs_without_input.setdefault(upload.job_id, f"the upload of {upload.name} {why}")
        refund_usage(self.tx, upload.tenant, upload.owner, upload.usage)
        if upload.storage_key is not None:
            self.add_trash(upload.storage_key, upload.multipart)
        self.release_announced_blob(upload)

    def release_announced_blob(self, upload: SQLiteUploadRow) -> None:
        """An upload refers to its blob no longer, if there is one."""
        if upload.references_blob and upload.blob_id in self.blobs:
            self.add_tombstone(self.blobs[upload.blob_id].number)

    def add_tombstone(self, blob: int) -> None:
        """A blob has lost a reference."""
        self._tombstones[blob] = None

    def add_trash(self, storage_key: str, multipart: str | None = None) -> None:
        """Nobody needs the object at this place."""
        self._trash[storage_key] = multipart or self._trash.get(storage_key)

    # -- writing --------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Write all that has changed."""
        tx = self.tx
        tx.write_rows(SQL.insert_blobs, self._new_blobs)
        tx.write_rows(SQL.insert_blob_bytes, self._new_bytes)
        tx.write_rows(SQL.insert_blob_checks, self._new_checks)
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
        gone = [pair for pair in changed if pair not in rows]
        self.tx.write_rows(put, [row(rows[pair]) for pair in changed if pair in rows])
        if gone:
            self.tx.execute(remove, self._numbered_json(gone))

    def _key_row(self, key: KeyRow) -> tuple[object, ...]:
        described = key.content_type, key.original_name, key.owner, key.uploaded_at, key.upload
        return self.tx.writer_state.tenant_numbers[key.tenant], key.key, key.blob, *described

    def _upload_row(self, upload: SQLiteUploadRow) -> tuple[object, ...]:
        tenant, *values = msgspec.structs.astuple(
            msgspec.structs.replace(upload, blob_id=_digest_bytes(upload.blob_id), sha256=_digest_bytes(upload.sha256))
        )
        return self.tx.writer_state.tenant_numbers[tenant], *values


def _digest_bytes(digest: str | None) -> bytes | None:
    return None if digest is None else bytes.fromhex(digest)


def run_all(shelf: BlobBatch, run: Callable[[BlobBatch, C], R], commands: Sequence[C]) -> list[R | IngotError]:
    """Run commands one after the other, and write what they have changed."""
    answers: list[R | IngotError] = []
    for command in commands:
        tenant: str = command.tenant  # type: ignore[attr-defined]
        try:
            if tenant not in shelf.tx.writer_state.tenants:
                raise TenantNotFound(f"there is no tenant {tenant[:64]!r}")
            answers.append(run(shelf, command))
        except IngotError as error:
            answers.append(error)
    shelf.write()
    return answers
