"""Files of jobs: inputs, outputs, checkpoints, payloads and logs that are too large for the database row.

The commands of jobs and uploads write them, and these are their promises:

**Inputs and payloads.** `Enqueue` refers to blobs that already have a reference in the tenant; otherwise it raises
`BlobNotFound`. They count towards the usage of the tenant and of the caller that creates the job, which is `PROCESS`
for Python code. If a quota would be exceeded, `QuotaExceeded` is raised. The content type of a file is that of a key,
an upload or a job file that refers to the same blob.

**Uploads of inputs.** An order with `uploads` begins them in the same transaction.

- The job is blocked until the last upload is finished and it waits for no other job. The transaction that finishes the
  last upload also queues the job. Finished uploads are in the job's `inputs`.
- If an upload fails, is canceled or expires, the job is canceled, and `last_error` names the input. If the job is
  canceled, its uploads end. A job that was canceled without an input cannot be retried: `FileNotFound`.
- For `reuse`, an upload that announces a blob ID counts as that blob. A job with an upload that announces none is never
  reused and never answered by another job.
- An order that is answered by an existing job begins no uploads and counts towards no quota or limit.

**Outputs.** `SettleJobs` with a successful attempt turns the outputs that were finished under its fence into files of
the job, in the same transaction. They replace all outputs of an earlier run, and each has an event `blob.stored`. Of
two outputs with the same name, the one that was finished last is kept. If an output that the attempt names is missing,
`OutputMissing` is raised. Other uploads of the attempt are swept. An attempt can begin up to `OUTPUTS_MAX` outputs;
above that, `InvalidInput` is raised.

**Logs and checkpoints.** Finishing the upload of one makes it a file of the job at once and replaces a file with the
same name. A checkpoint has no event. A successful attempt removes all checkpoints of its job in the same transaction;
after any other end they stay for the next attempt. A job can have up to `CHECKPOINTS_MAX` checkpoints with different
names; above that, `InvalidInput` is raised. A checkpoint that replaces another one with its name is always possible.

Files are removed together with their job.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal
from uuid import UUID

import msgspec

from ingot.blobs.model import Content
from ingot.kernel.commands import Command
from ingot.kernel.errors import Conflict, NotFound

INPUTS_MAX: Final = 100  # Per job, including uploads that are not finished.
OUTPUTS_MAX: Final = 1_000  # Per attempt.
CHECKPOINTS_MAX: Final = 1_000  # Per job, including uploads that are not finished.
CHECKPOINT_BYTES_MAX: Final = 64 * 1024 * 1024  # Checkpoints are read into memory.
PAYLOAD: Final = "payload"  # The name of the file that holds a payload.
CHECKPOINT_NAME_DEFAULT: Final = "checkpoint"
CHECKPOINT_HINT: Final = "Split it into several checkpoints with different names."

JobFileKind = Literal["input", "output", "log", "payload", "checkpoint"]
READABLE_KINDS: Final[frozenset[JobFileKind]] = frozenset({"input", "payload", "checkpoint"})  # Readable by attempts.


def input_upload_id(job_id: str, n: int) -> str:
    """Return the ID of the upload of the n-th input of a job, counted from 0.

    The ID is derived from that of the job, so that a repeated request finds the uploads that it began.
    """
    return str(UUID(int=UUID(job_id).int + 1 + n))


class FileNotFound(NotFound):
    """The job has no such file."""

    code = "file_not_found"
    hint = "List the files of the job with GET /api/v1/jobs/{id}/files."


class OutputMissing(Conflict):
    """An output that the attempt names was not uploaded under its fence."""

    code = "output_missing"
    hint = "The attempt was not settled. Complete the upload of the output, then settle again."


class JobFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a job. Outputs are those of the latest successful attempt."""

    kind: JobFileKind
    """Kind of the file."""
    name: str
    """Name of the file. The name of a log is the number of its attempt."""
    blob_id: str
    """ID of the blob."""
    sha256: str
    """SHA-256 of the blob, as 64 hexadecimal digits."""
    size: int
    """Size in bytes."""
    content_type: str
    """Content type, such as `application/pdf`."""
    since: datetime
    """When the blob became a file of the job."""


class RunningJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that runs under a fence, with the number of its attempt."""

    job_id: str
    tenant: str
    type: str
    attempt: int


class ListJobFiles(Command[list[JobFile]], frozen=True, kw_only=True):
    """Return the files of a job, ordered by kind and name. Raises `JobNotFound`."""

    tenant: str
    job_id: str


class FindRunningJob(Command[RunningJob], frozen=True, kw_only=True):
    """Return the job that runs under this fence. `tenant` and `worker` restrict it as in `Settle`.

    Raises `JobNotFound` or `LeaseLost`.
    """

    job_id: str
    fence: int
    tenant: str | None
    worker: str | None


class OpenJobFile(Command[tuple[JobFile, Content]], frozen=True, kw_only=True):
    """Return an input, the payload or a checkpoint of a job that runs under this fence.

    `tenant` and `worker` restrict the job as in `Settle`. Raises `JobNotFound`, `LeaseLost` or `FileNotFound`.
    """

    job_id: str
    fence: int
    kind: JobFileKind
    name: str
    tenant: str | None
    worker: str | None
