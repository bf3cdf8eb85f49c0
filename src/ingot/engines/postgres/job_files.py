"""Reading files of jobs."""

from __future__ import annotations

from ingot.blobs.model import Content
from ingot.engines.postgres.blob_rows import content_of
from ingot.engines.postgres.connection import Record
from ingot.engines.postgres.context import Context
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.job_reads import may_exist
from ingot.engines.postgres.settle import lease_error
from ingot.engines.postgres.sql import SQL
from ingot.jobs.errors import JobNotFound
from ingot.jobs.files import (
    READABLE_KINDS,
    FileNotFound,
    FindRunningJob,
    JobFile,
    JobFileKind,
    ListJobFiles,
    OpenJobFile,
    RunningJob,
)
from ingot.kernel.clock import to_datetime


async def list_files(context: Context, command: ListJobFiles) -> list[JobFile]:
    """Return the files of a job."""
    tenant, job_id = command.tenant, command.job_id
    exists = may_exist(context, tenant, job_id)
    rows = await context.database.read(tenant, SQL.files_of_job, job_id) if exists else []
    if not rows:
        raise JobNotFound(f"there is no job {job_id[:64]!r} in this tenant")
    return [_file_of(row, row["blob"], row["kind"], row["name"]) for row in rows if row["name"] is not None]


async def find_running_job(context: Context, command: FindRunningJob) -> RunningJob:
    """Return the job that runs under a fence."""
    row = await _find_running_job(context, command)
    return RunningJob(job_id=command.job_id, tenant=row["tenant"], type=row["type"], attempt=row["attempts"])


async def open_file(context: Context, command: OpenJobFile) -> tuple[JobFile, Content]:
    """Return an input, the payload or a checkpoint of the job that runs under a fence."""
    kind, name = command.kind, command.name
    row = await _find_running_job(context, command, kind, name)
    if kind not in READABLE_KINDS or row["digest"] is None:
        raise FileNotFound(f"the job has no {kind} {name[:64]!r}")
    return _file_of(row, row["digest"], kind, name), content_of(row)


async def _find_running_job(
    context: Context, command: FindRunningJob | OpenJobFile, kind: str | None = None, name: str | None = None
) -> Record:
    """Return a job and one of its files. Raises `JobNotFound`, or `LeaseLost` if it does not run under this fence."""
    rows = await context.database.call(CALL.open_file, command.job_id, kind, name)
    row = rows[0] if rows else None
    error = lease_error(command, row, holder=None if row is None else row["holder"])
    if error is not None or row is None:
        raise error or JobNotFound
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
