"""Files of jobs: what they are given, make and save for their next attempts, and what they wrote when it was much.

They are written by the commands of jobs and uploads:

`Enqueue` refers to the inputs of an order, and to its payload: blobs that something in the tenant refers to
(`BlobNotFound` otherwise), counted in its usage and that of who made the job (`QuotaExceeded`); the process itself
is `PROCESS`. Their content type is that of a key, an upload or a file that refers to them. An order with `uploads`
begins these in the same transaction, and its job is blocked until the last of them is finished and no job it waits
for is left: it is queued in the transaction that finishes it, and they are in its `inputs`. When one of them fails,
is given up or is swept, the job is canceled, with the reason, which names it, in `last_error`; when the job is
canceled, they end. A job whose input never came cannot be retried: `FileNotFound`. To `reuse` an upload that
announces its blob is that blob as an input; a job with one that does not is not made by reuse, and not reused. An
order that is answered by a job that was there before begins no uploads, and counts for nothing.

`SettleJobs` with an attempt that succeeded makes the outputs that were finished under its fence files of the job,
in the same transaction, in place of all those of an earlier run, with an event `blob.stored` for each; of two with
the same name the one that was finished last. It refuses with `OutputMissing` when one that it names is not there.
Whatever else was uploaded for the attempt is swept. Beginning more than `OUTPUTS_MAX` outputs of one attempt is
`InvalidInput`.

Finishing the upload of a `log` or a `checkpoint` makes it a file of the job at once, in place of one with its name;
of a checkpoint no event tells. An attempt that succeeds removes all checkpoints of its job in the same transaction,
and gives their bytes back; however else one ends, they stay for the next. Beginning a checkpoint that would be one
more than `CHECKPOINTS_MAX` of the job is `InvalidInput`; one with the name of another never is. What this attempt
has finished under its name is an upload no longer then, so that there are never more of them than names.

Files go with their job, and their bytes are given back then.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal
from uuid import UUID

import msgspec

from ingot.blobs.model import Content
from ingot.kernel.commands import Command
from ingot.kernel.errors import Conflict, NotFound

INPUTS_MAX: Final = 100  # Of a job, those that are still to come with them.
OUTPUTS_MAX: Final = 1_000  # Of an attempt.
CHECKPOINTS_MAX: Final = 1_000  # Of a job, those that are still to come with them.
CHECKPOINT_BYTES_MAX: Final = 64 * 1024 * 1024  # It is read into memory.
PAYLOAD: Final = "payload"  # The name of the file that holds a payload.
CHECKPOINT_NAME_DEFAULT: Final = "checkpoint"  # The name of one that was given none.
CHECKPOINT_HINT: Final = "Save it in several, each under a name of its own."

JobFileKind = Literal["input", "output", "log", "payload", "checkpoint"]
READABLE_KINDS: Final[frozenset[JobFileKind]] = frozenset({"input", "payload", "checkpoint"})  # By an attempt.


def input_upload_id(job_id: str, n: int) -> str:
    """The id of the upload of an input of a job, counted from 0: who sends an order again finds what it began."""
    return str(UUID(int=UUID(job_id).int + 1 + n))


class FileNotFound(NotFound):
    """The job has no such file."""

    code = "file_not_found"
    hint = "GET /api/v1/jobs/{id}/files lists those that it has."


class OutputMissing(Conflict):
    """An output that the attempt names was not uploaded under its fence."""

    code = "output_missing"
    hint = "Nothing was settled. Complete its upload first, and settle then."


class JobFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a job. An `output` is that of the run that succeeded last; a `log` has the number of its attempt.

    A `checkpoint` is what an attempt saved for later ones: it goes when one has succeeded.
    """

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
    """The job that runs under a fence, and the number of this attempt."""

    job_id: str
    tenant: str
    type: str
    attempt: int


class ListJobFiles(Command[list[JobFile]], frozen=True, kw_only=True):
    """The files of a job, by kind and name. Raises `JobNotFound`."""

    tenant: str
    job_id: str


class FindRunningJob(Command[RunningJob], frozen=True, kw_only=True):
    """The job that runs under this fence; restricted as a `Settle` is. Raises `JobNotFound` or `LeaseLost`."""

    job_id: str
    fence: int
    tenant: str | None
    worker: str | None


class OpenJobFile(Command[tuple[JobFile, Content]], frozen=True, kw_only=True):
    """An input, the payload or a checkpoint, for the attempt under this fence; restricted as a `Settle` is.

    Raises `JobNotFound`, `LeaseLost` or `FileNotFound`.
    """

    job_id: str
    fence: int
    kind: JobFileKind
    name: str
    tenant: str | None
    worker: str | None
