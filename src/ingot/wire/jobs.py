"""Requests and responses of jobs and claims."""

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

ABSENT = Raw(b"")  # The value of a field that was not sent.
PageLimit = Annotated[int, Meta(ge=1, le=PAGE_ROWS_MAX)]
CharacterOffset = Annotated[int, Meta(ge=0, le=2**53)]
Fence = Annotated[int, Meta(ge=1, le=2**53)]
LogText = Annotated[str, Meta(max_length=LOG_CHARS_MAX)]
LogOffset = Annotated[int, Meta(ge=0, le=LOG_OFFSET_MAX)]


class RequestStruct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request body or query. An unknown field is an error."""


class JobSpec(RequestStruct, frozen=True, kw_only=True):
    """A new job."""

    type: JobType
    """Job type. Workers claim jobs by type."""
    payload: Raw = msgspec.field(default_factory=lambda: NULL)
    """Input for the handler: JSON of up to 64 KiB. It is stored unchanged."""
    priority: Priority | None = None
    """Priority, from 1 (critical) to 5 (background). The default is that of the definition."""
    run_at: Timestamp | None = None
    """Time before which the job does not start."""
    delay_seconds: DelaySeconds | None = None
    """Seconds until the job may start, instead of `run_at`."""
    max_attempts: AttemptCount | None = None
    """Number of failures after which the job is dead. The default is that of the definition."""
    idempotency_key: KeyText | None = None
    """Key that makes the request repeatable: the same key with the same payload returns the same job."""
    dedupe_key: KeyText | None = None
    """Key that only one unfinished job of a tenant can have. A second job is rejected with 409."""
    tags: Tags = []
    """Words by which the job can be found."""
    metadata: Raw = msgspec.field(default_factory=lambda: ABSENT)
    """Any JSON. It is stored unchanged."""
    after: JobIds = []
    """IDs of the jobs that this job waits for."""
    on_dead: OnDead = OnDead.CANCEL
    """Whether the job is canceled or runs when a job that it waits for is dead or canceled."""
    inputs: InputBlobs = {}
    """IDs of input blobs that are already stored, by name."""
    payload_blob: BlobId | None = None
    """ID of a stored blob with the payload, if the payload is larger than 64 KiB."""
    batch: BatchName | None = None
    """Name of the batch that the job belongs to."""
    force: bool = False
    """Whether to create the job even if an existing job could be reused."""
    correlation_id: KeyText | None = None
    """ID that connects the job with something outside of Ingot."""
    trace_id: KeyText | None = None
    """ID of the trace that the job belongs to."""


class CreateJobsRequest(RequestStruct, frozen=True, kw_only=True):
    """New jobs. Either all of them are created or none."""

    jobs: list[JobSpec]
    """Jobs to create."""


class JobsFilter(RequestStruct, frozen=True, kw_only=True):
    """A filter for jobs. A job must fit all fields that are set."""

    status: JobStatus | None = None
    """Only jobs with this status."""
    type: str | None = None
    """Only jobs of this type. Required if the grant of the caller is limited to a type."""
    tag: str | None = None
    """Only jobs with this tag."""
    source: Source | None = None
    """Only jobs with this kind of cause."""
    created_after: Timestamp | None = None
    """Only jobs created after this time."""
    created_before: Timestamp | None = None
    """Only jobs created before this time."""


class SummaryQuery(JobsFilter, frozen=True, kw_only=True):
    """The jobs to count."""


class JobsQuery(JobsFilter, frozen=True, kw_only=True):
    """The jobs to list."""

    cursor: str | None = None
    """The `next_cursor` of the previous response, to continue the list."""
    limit: PageLimit = PAGE_ROWS_DEFAULT
    """Maximum number of jobs."""


class WaitQuery(RequestStruct, frozen=True, kw_only=True):
    """The time to wait for a job to finish."""

    wait_seconds: WaitSeconds = 30
    """Maximum number of seconds to wait, up to 60."""


class ChangeJobRequest(RequestStruct, frozen=True, kw_only=True):
    """Changes of a job. Fields that are left out stay as they are."""

    priority: Priority | None = None
    """New priority, from 1 (critical) to 5 (background)."""
    run_at: Timestamp | None = None
    """New time before which the job does not start."""
    max_attempts: AttemptCount | None = None
    """New number of failures after which the job is dead."""
    tags: Tags | None = None
    """New tags. They replace all previous tags."""


class RetryJobRequest(RequestStruct, frozen=True, kw_only=True):
    """Changes of a finished job that is run again."""

    reset_attempts: bool = False
    """Whether to set failures and crashes back to 0."""
    priority: Priority | None = None
    """New priority, from 1 (critical) to 5 (background)."""
    max_attempts: AttemptCount | None = None
    """New number of failures after which the job is dead."""
    run_at: Timestamp | None = None
    """Time before which the job does not start."""


class ClaimRequest(RequestStruct, frozen=True, kw_only=True):
    """A claim of jobs by a worker."""

    types: JobTypes
    """Job types to claim."""
    worker_id: WorkerId | None = None
    """ID of the worker. For a worker credential: its ID, optionally with `/` and an instance name."""
    limit: ClaimLimit = 1
    """Maximum number of jobs."""
    wait_seconds: WaitSeconds = 0
    """Maximum number of seconds to wait for a job, up to 60."""
    host: KeyText | None = None
    """Name of the machine on which the attempts run."""
    pid: Count | None = None
    """ID of the process in which the attempts run."""


class ClaimResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The claimed jobs."""

    jobs: list[Raw]
    """Claimed jobs, each with an additional field `timeout_seconds`: the maximum duration of the attempt."""


class HeartbeatRequest(RequestStruct, frozen=True, kw_only=True):
    """A heartbeat for one job, with new progress and log text."""

    fence: Fence
    """Fence of the attempt."""
    progress: Progress | None = None
    """Progress of the attempt."""
    log: LogText | None = None
    """Text that the attempt logged since the previous heartbeat."""
    log_offset: LogOffset | None = None
    """Number of characters logged before `log`. With it, repeating a heartbeat does not repeat the text."""


class LogQuery(RequestStruct, frozen=True, kw_only=True):
    """The attempt whose log is read, and where to start."""

    attempt: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    """Number of the attempt. The default is the latest attempt."""
    after: CharacterOffset = 0
    """Position in the log, in characters, from which to read."""


class CompleteRequest(RequestStruct, frozen=True, kw_only=True):
    """The success of an attempt."""

    fence: Fence
    """Fence of the attempt."""
    result: Raw = msgspec.field(default_factory=lambda: ABSENT)
    """Result: JSON of up to 64 KiB. It is stored unchanged."""
    outputs: OutputNames = []
    """Names of the outputs that the attempt uploaded. If one is missing, the attempt is not settled."""


class FailRequest(RequestStruct, frozen=True, kw_only=True):
    """The failure of an attempt."""

    fence: Fence
    """Fence of the attempt."""
    error: str
    """Error message."""
    retry: bool = True
    """Whether the job may be tried again."""
    exit_code: int | None = None
    """Exit code of the process in which the attempt ran, if it had its own."""
    timed_out: bool = False
    """Whether the attempt exceeded its maximum duration. Its outcome is then `timed_out`."""


class ReleaseRequest(RequestStruct, frozen=True, kw_only=True):
    """The return of an unfinished job."""

    fence: Fence
    """Fence of the attempt."""


class SnoozeRequest(RequestStruct, frozen=True, kw_only=True):
    """The end of an attempt whose job runs again after a delay."""

    fence: Fence
    """Fence of the attempt."""
    seconds: DelaySeconds
    """Seconds until the job runs again."""


class SettleEntry(RequestStruct, frozen=True, kw_only=True, tag_field="outcome"):
    """How one of several attempts ended.

    Bounds are not enforced by the decoder, so that an invalid entry does not reject the others.
    """

    id: str
    """ID of the job."""
    fence: Annotated[int, schema_only(minimum=1, maximum=2**53)]
    """Fence of the attempt."""


class AttemptSucceeded(SettleEntry, frozen=True, kw_only=True, tag="succeeded"):
    """The attempt succeeded."""

    result: Raw = msgspec.field(default_factory=lambda: ABSENT)
    """Result: JSON of up to 64 KiB. It is stored unchanged."""
    outputs: Annotated[list[str], schema_only(maxItems=OUTPUTS_MAX)] = []
    """Names of the outputs that the attempt uploaded. If one is missing, the attempt is not settled."""


class AttemptFailed(SettleEntry, frozen=True, kw_only=True, omit_defaults=True, tag="failed"):
    """The attempt failed."""

    error: str
    """Error message."""
    retry: bool = True
    """Whether the job may be tried again."""
    exit_code: int | None = None
    """Exit code of the process in which the attempt ran, if it had its own."""
    timed_out: bool = False
    """Whether the attempt exceeded its maximum duration. Its outcome is then `timed_out`."""


class AttemptSnoozed(SettleEntry, frozen=True, kw_only=True, tag="snoozed"):
    """The job runs again after a delay."""

    seconds: Annotated[float, schema_only(minimum=0, maximum=DELAY_SECONDS_MAX)]
    """Seconds until the job runs again."""


class AttemptReleased(SettleEntry, frozen=True, kw_only=True, tag="released"):
    """The worker released the unfinished job."""


class SettleRequest(RequestStruct, frozen=True, kw_only=True):
    """How several attempts ended."""

    jobs: list[AttemptSucceeded | AttemptFailed | AttemptSnoozed | AttemptReleased]
    """One entry per attempt."""


class SettleResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of the job after its attempt was settled, or an error."""

    id: str
    """ID of the job."""
    status: JobStatus | None = None
    """Status of the job after the attempt."""
    attempts: int | None = None
    """Number of times the job was claimed."""
    will_retry: bool | None = None
    """Whether the job will run again."""
    run_at: datetime | None = None
    """When the job will run again."""
    code: str | None = None
    """Error code, if the attempt was not settled."""
    detail: str | None = None
    """Description of the error, for people."""


class SettleResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The result for each attempt."""

    jobs: list[SettleResult]
    """One entry per attempt, in the order of the request."""
