"""Reading about files of jobs."""

from __future__ import annotations

from collections.abc import Awaitable

import msgspec

from ingot.blobs.model import Content
from ingot.engines.sqlite.blob_reads import BlobReads
from ingot.engines.sqlite.blob_rows import JobFileRow
from ingot.engines.sqlite.rows import State
from ingot.engines.sqlite.settle import held
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import as_json
from ingot.jobs.errors import JobNotFound
from ingot.jobs.files import READABLE, FileNotFound, JobFile, JobFileKind, RunningJob


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt that somebody asks about, restricted as a `Settle` is."""

    job_id: str
    fence: int
    tenant: str | None
    worker: str | None


class FileReads(BlobReads):
    """The reading half of the store, with files of jobs too."""

    def list_files(self, tenant: str, job_id: str) -> Awaitable[list[JobFile]]:
        """See `FileStore`."""
        return self._run(self._list_files, tenant, job_id)

    def _list_files(self, tenant: str, job_id: str) -> list[JobFile]:
        with self._reader() as reader:  # One snapshot for the job and its files.
            number = reader.execute(SQL.number_of_job, (job_id, tenant)).get
            rows = None if number is None else self._read(list[JobFileRow], SQL.files_of_job, number)
        if rows is None:
            raise JobNotFound(f"there is no job {job_id[:64]!r} in this tenant")
        return [row.file() for row in rows]

    def find_running(self, job_id: str, fence: int, *, tenant: str | None, worker: str | None) -> Awaitable[RunningJob]:
        """See `FileStore`."""
        return self._run(self._find_running, Asked(job_id=job_id, fence=fence, tenant=tenant, worker=worker))

    def _find_running(self, asked: Asked) -> RunningJob:
        state = self._held(asked)
        return RunningJob(job_id=state.id, tenant=state.tenant, type=state.type, attempt=state.attempts)

    def _held(self, asked: Asked) -> State:
        states = self._read(list[State], SQL.state_of_jobs, as_json([asked.job_id])) or []
        return held({state.id: state for state in states}, asked)

    def open_file(
        self, job_id: str, fence: int, kind: JobFileKind, name: str, *, tenant: str | None, worker: str | None
    ) -> Awaitable[tuple[JobFile, Content]]:
        """See `FileStore`."""
        asked = Asked(job_id=job_id, fence=fence, tenant=tenant, worker=worker)
        return self._run(self._open_file, asked, kind, name)

    def _open_file(self, asked: Asked, kind: JobFileKind, name: str) -> tuple[JobFile, Content]:
        with self._reader():  # One snapshot for the attempt, the file and its bytes.
            state = self._held(asked)
            row = None
            if kind in READABLE:
                row = self._read(JobFileRow, SQL.file_of_job, state.number, kind, name)
            content = None if row is None else self._content(bytes.fromhex(row.blob_id))
        if row is None or content is None:
            raise FileNotFound(f"the job has no {kind} {name[:64]!r}")
        return row.file(), content
