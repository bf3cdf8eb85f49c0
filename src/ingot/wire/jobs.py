"""Requests and answers about jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from ingot.jobs.checks import DELAY_SECONDS_MAX, LOG_CHARS_MAX, LOG_OFFSET_MAX
from ingot.jobs.files import OUTPUTS_MAX
from ingot.jobs.model import NULL, JobStatus, OnDead, Progress, Source
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX
from ingot.wire.field_types import (
    AttemptCount,
    BatchName,
    BlobId,
    ClaimLimit,
    Count,
    DelaySeconds,
    InputBlobs,
    JobIds,
    JobType,
    JobTypes,
    KeyText,
    OutputNames,
    Priority,
    Tags,
    Timestamp,
    WaitSeconds,
    WorkerId,
    schema_only,
)

ABSENT = Raw(b"")  # What was not sent.
PageLimit = Annotated[int, Meta(ge=1, le=PAGE_ROWS_MAX)]
CharacterOffset = Annotated[int, Meta(ge=0, le=2**53)]  # In a text, counted in characters.
Fence = Annotated[int, Meta(ge=1, le=2**53)]
LogText = Annotated[str, Meta(max_length=LOG_CHARS_MAX)]
LogOffset = Annotated[int, Meta(ge=0, le=LOG_OFFSET_MAX)]


class RequestStruct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request: what it says that nobody knows is an error."""


class JobSpec(RequestStruct, frozen=True, kw_only=True):
    """A job to be made. `payload` and `metadata` are kept as they were sent.

    `inputs` are blobs that are here already, by the names that the job knows them by.
    """

    type: JobType
    payload: Raw = msgspec.field(default_factory=lambda: NULL)
    priority: Priority | None = None
    run_at: Timestamp | None = None
    delay_seconds: DelaySeconds | None = None
    max_attempts: AttemptCount | None = None
    idempotency_key: KeyText | None = None
    dedupe_key: KeyText | None = None
    tags: Tags = []
    metadata: Raw = msgspec.field(default_factory=lambda: ABSENT)
    after: JobIds = []
    on_dead: OnDead = OnDead.CANCEL
    inputs: InputBlobs = {}
    payload_blob: BlobId | None = None
    batch: BatchName | None = None
    force: bool = False
    correlation_id: KeyText | None = None
    trace_id: KeyText | None = None


class CreateJobsRequest(RequestStruct, frozen=True, kw_only=True):
    """Jobs to be made together: all or none."""

    jobs: list[JobSpec]


class JobsFilter(RequestStruct, frozen=True, kw_only=True):
    """Which jobs are meant: those that fit all that is given."""

    status: JobStatus | None = None
    type: str | None = None
    tag: str | None = None
    source: Source | None = None
    created_after: Timestamp | None = None
    created_before: Timestamp | None = None


class SummaryQuery(JobsFilter, frozen=True, kw_only=True):
    """Which jobs to count."""


class JobsQuery(JobsFilter, frozen=True, kw_only=True):
    """Which jobs to list."""

    cursor: str | None = None
    limit: PageLimit = PAGE_ROWS_DEFAULT


class WaitQuery(RequestStruct, frozen=True, kw_only=True):
    """How long to wait for a job to be finished."""

    wait_seconds: WaitSeconds = 30


class ChangeJobRequest(RequestStruct, frozen=True, kw_only=True):
    """What to change of a job; what is left out stays."""

    priority: Priority | None = None
    run_at: Timestamp | None = None
    max_attempts: AttemptCount | None = None
    tags: Tags | None = None


class RetryJobRequest(RequestStruct, frozen=True, kw_only=True):
    """How to run a finished job again."""

    reset_attempts: bool = False
    priority: Priority | None = None
    max_attempts: AttemptCount | None = None
    run_at: Timestamp | None = None


class ClaimRequest(RequestStruct, frozen=True, kw_only=True):
    """A worker asks for jobs. Without a `worker_id` it is the one of the credential."""

    types: JobTypes
    worker_id: WorkerId | None = None
    limit: ClaimLimit = 1
    wait_seconds: WaitSeconds = 0
    host: KeyText | None = None
    pid: Count | None = None


class ClaimResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that are the worker's now. Each is a job, with the seconds it may take."""

    jobs: list[Raw]


class HeartbeatRequest(RequestStruct, frozen=True, kw_only=True):
    """A worker is at work on a job.

    `log` is what the attempt wrote since the last time, and `log_offset` how many characters it had sent before: with
    it, a heartbeat that is sent again adds nothing to the log.
    """

    fence: Fence
    progress: Progress | None = None
    log: LogText | None = None
    log_offset: LogOffset | None = None


class LogQuery(RequestStruct, frozen=True, kw_only=True):
    """Whose log to read, the newest attempt's unless told, and from which character on."""

    attempt: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    after: CharacterOffset = 0


class CompleteRequest(RequestStruct, frozen=True, kw_only=True):
    """The work is done. `outputs` names files that must have been uploaded for it."""

    fence: Fence
    result: Raw = msgspec.field(default_factory=lambda: ABSENT)
    outputs: OutputNames = []


class FailRequest(RequestStruct, frozen=True, kw_only=True):
    """The work failed."""

    fence: Fence
    error: str
    retry: bool = True
    exit_code: int | None = None


class ReleaseRequest(RequestStruct, frozen=True, kw_only=True):
    """What proves the right to a job."""

    fence: Fence


class SnoozeRequest(RequestStruct, frozen=True, kw_only=True):
    """Not now."""

    fence: Fence
    seconds: DelaySeconds


class SettleEntry(RequestStruct, frozen=True, kw_only=True, tag_field="outcome"):
    """How one of several attempts ended. Each entry has its own answer, so no bound here refuses the others."""

    id: str
    fence: Annotated[int, schema_only(minimum=1, maximum=2**53)]


class AttemptSucceeded(SettleEntry, frozen=True, kw_only=True, tag="succeeded"):
    """It is done."""

    result: Raw = msgspec.field(default_factory=lambda: ABSENT)
    outputs: Annotated[list[str], schema_only(maxItems=OUTPUTS_MAX)] = []


class AttemptFailed(SettleEntry, frozen=True, kw_only=True, tag="failed"):
    """It failed."""

    error: str
    retry: bool = True
    exit_code: int | None = None


class AttemptSnoozed(SettleEntry, frozen=True, kw_only=True, tag="snoozed"):
    """Not now."""

    seconds: Annotated[float, schema_only(minimum=0, maximum=DELAY_SECONDS_MAX)]


class AttemptReleased(SettleEntry, frozen=True, kw_only=True, tag="released"):
    """Given back unfinished."""


class SettleRequest(RequestStruct, frozen=True, kw_only=True):
    """How each of several attempts ended."""

    jobs: list[AttemptSucceeded | AttemptFailed | AttemptSnoozed | AttemptReleased]


class SettleResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one of them: where the job stands, or the code of the error."""

    id: str
    status: JobStatus | None = None
    attempts: int | None = None
    will_retry: bool | None = None
    run_at: datetime | None = None
    code: str | None = None
    detail: str | None = None


class SettleResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An answer for each, in the order in which they were sent."""

    jobs: list[SettleResult]
