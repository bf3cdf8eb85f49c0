"""Files of jobs, as they are told."""

from __future__ import annotations

from typing import Final

from ingot.blobs.model import Content
from ingot.engines.postgres.blob_rows import content_of
from ingot.engines.postgres.connection import Database, Record
from ingot.engines.postgres.settle import why_lost
from ingot.engines.postgres.sql import SQL
from ingot.jobs.errors import JobNotFound
from ingot.jobs.files import READABLE, FileNotFound, JobFile, JobFileKind, RunningJob
from ingot.jobs.model import Done, Settle
from ingot.kernel.clock import to_datetime

OPEN: Final = "SELECT * FROM ingot.open_file($1, $2, $3)"


async def list_files(db: Database, tenant: str, job_id: str) -> list[JobFile]:
    """The files of a job."""
    rows = await db.read(tenant, SQL.files_of_job, job_id)
    if not rows:
        raise JobNotFound(f"there is no job {job_id[:64]!r} in this tenant")
    return [_file_of(row, row["blob"], row["kind"], row["name"]) for row in rows if row["name"] is not None]


async def find_running(db: Database, job_id: str, fence: int, *, tenant: str | None, worker: str | None) -> RunningJob:
    """The job that runs under a fence."""
    row = await _find(db, job_id, fence, None, None, tenant=tenant, worker=worker)
    return RunningJob(job_id=job_id, tenant=row["tenant"], type=row["type"], attempt=row["attempts"])


async def open_file(
    db: Database, job_id: str, fence: int, kind: JobFileKind, name: str, *, tenant: str | None, worker: str | None
) -> tuple[JobFile, Content]:
    """What the job that runs under a fence was given, or saved before."""
    row = await _find(db, job_id, fence, kind, name, tenant=tenant, worker=worker)
    if kind not in READABLE or row["digest"] is None:
        raise FileNotFound(f"the job has no {kind} {name[:64]!r}")
    return _file_of(row, row["digest"], kind, name), content_of(row)


async def _find(
    db: Database, job_id: str, fence: int, kind: str | None, name: str | None, *, tenant: str | None, worker: str | None
) -> Record:
    """A job and a file of it. Raises `JobNotFound`, or `LeaseLost` unless it runs under this fence."""
    rows = await db.call(OPEN, job_id, kind, name)
    row = rows[0] if rows else None
    asked = Settle(job_id=job_id, fence=fence, outcome=Done(), tenant=tenant, worker=worker)
    lost = why_lost(asked, row, holder=None if row is None else row["holder"])
    if lost is not None or row is None:
        raise lost or JobNotFound
    return row


def _file_of(row: Record, blob: bytes, kind: JobFileKind, name: str) -> JobFile:
    return JobFile(
        kind=kind,
        name=name,
        blob_id=blob.hex(),
        sha256=row["sha256"].hex(),
        size=row["size"],
        content_type=row["content_type"],
        since=to_datetime(row["since"]),
    )
