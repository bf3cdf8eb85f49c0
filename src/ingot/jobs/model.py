"""Jobs, definitions, attempts, and what the commands of the jobs room return."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

import msgspec

from ingot.blobs.ports import BeginUpload

NULL = msgspec.Raw(b"null")
PRIORITY_MIN, PRIORITY_DEFAULT, PRIORITY_MAX = 1, 3, 5
MAX_ATTEMPTS_DEFAULT = 5
CRASH_CAP_DEFAULT = 3
TIMEOUT_SECONDS_DEFAULT = 3600
JOBS_AHEAD_MAX = 5_000


class JobStatus(StrEnum):
    """The states of a job. *Scheduled* and *retrying* are labels of `queued`."""

    __hash__ = str.__hash__  # The method of `Enum` is written in Python, and counting jobs calls it often.

    BLOCKED = "blocked"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELED = "canceled"


class AttemptOutcome(StrEnum):
    """How an attempt ended: as the worker reported it, `lost` because its lease expired, or `canceled`.

    An attempt is `canceled` if the worker released the job after it was asked to stop.
    """

    __hash__ = str.__hash__  # See `JobStatus`.

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    SNOOZED = "snoozed"
    RELEASED = "released"
    CANCELED = "canceled"
    LOST = "lost"


class Source(StrEnum):
    """The kind of cause that created a job."""

    MANUAL = "manual"
    EVENT = "event"
    SCHEDULE = "schedule"
    SYSTEM = "system"
    DOCUMENT = "document"


class OnDead(StrEnum):
    """Whether a job is canceled or runs when a job that it waits for is dead or canceled."""

    CANCEL = "cancel"
    RUN = "run"


class Backoff(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """The pause before the next attempt after a failure. It grows with every failure of the job, up to a maximum."""

    first_seconds: float = 1.0
    """Pause after the first failure, in seconds."""
    factor: float = 2.0
    """Factor by which the pause grows with every further failure."""
    max_seconds: float = 3600.0
    """Longest pause, in seconds."""


class Definition(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The defaults and limits of jobs of one type, in one tenant or in all.

    Jobs whose payload has none of the fields in `limit_key` are not limited by key.

    With `reuse`, a new job with the same type, `version`, payload and inputs as an existing job is not created. The
    existing job is returned instead, unless it is dead or canceled.

    Without `retention_seconds` in the definition and in the limits of the tenant, finished jobs are kept forever.
    """

    type: str
    """Job type."""
    tenant: str | None = None
    """ID of the tenant; `null` if the definition applies to all tenants."""
    timeout_seconds: float = TIMEOUT_SECONDS_DEFAULT
    """Maximum duration of an attempt in seconds. The worker enforces it."""
    max_attempts: int = MAX_ATTEMPTS_DEFAULT
    """Number of failures after which a job is dead."""
    crash_cap: int = CRASH_CAP_DEFAULT
    """Number of crashes after which a job is dead."""
    priority: int = PRIORITY_DEFAULT
    """Default priority, from 1 (critical) to 5 (background)."""
    backoff: Backoff = Backoff()
    """Pause before the next attempt after a failure."""
    max_running: int | None = None
    """Maximum number of jobs of this type that run at once in a tenant."""
    limit_key: str | None = None
    """Template of payload fields, such as `{account.id}`. Jobs with the same values share a limit."""
    max_running_per_key: int | None = None
    """Maximum number of jobs with the same `limit_key` that run at once."""
    reuse: bool = False
    """Whether a request for the same work returns the existing job."""
    version: int = 1
    """Version of the work. Jobs are only reused under the same version."""
    retention_seconds: float | None = None
    """How long finished jobs are kept, in seconds; `null` to use the limit of the tenant."""
    keep_history: bool = False
    """Whether to keep a short entry about each removed job."""


class Pause(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A paused job type: workers get no more jobs of the type in a tenant. Running jobs continue."""

    type: str
    """Job type."""
    since: datetime
    """When the type was paused."""
    by: str | None = None
    """Caller that paused the type."""


class Progress(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The progress of an attempt."""

    percent: float
    """Percentage of the work that is done, from 0 to 100."""
    stage: str = ""
    """Current stage in a few words."""


class NewJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The description of a job that is to be enqueued. `Job` describes the fields that both have."""

    id: str
    tenant: str
    type: str
    payload: bytes = b"null"
    """JSON text, stored unchanged. It is `null` if the payload is the blob `payload_blob`."""
    priority: int | None = None
    run_at: int | None = None
    """Time before which the job does not start, in microseconds since 1970."""
    delay: int = 0
    """Microseconds until the job may start, instead of `run_at`."""
    max_attempts: int | None = None
    idempotency_key: str | None = None
    payload_digest: bytes | None = None
    dedupe_key: str | None = None
    tags: tuple[str, ...] = ()
    metadata: bytes | None = None
    """JSON text, stored unchanged."""
    correlation_id: str | None = None
    trace_id: str | None = None
    source: Source = Source.MANUAL
    source_ref: str | None = None
    created_by: str | None = None
    depth: int = 0
    after: tuple[str, ...] = ()
    on_dead: OnDead = OnDead.CANCEL
    batch: str | None = None
    inputs: dict[str, str] = {}
    uploads: tuple[BeginUpload, ...] = ()
    """Inputs that are still to be uploaded. They are added to `inputs` when their uploads are complete."""
    payload_blob: str | None = None
    owner_quota: int | None = None
    """Maximum number of bytes that the caller that creates the job may keep."""
    force: bool = False
    """Whether to create the job even if an existing job could be reused."""


class Job(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A piece of work in its current state."""

    id: str
    """ID of the job."""
    tenant: str
    """ID of the tenant."""
    type: str
    """Job type. Workers claim jobs by type."""
    status: JobStatus
    """Status of the job."""
    priority: int
    """Priority, from 1 (critical) to 5 (background)."""
    payload: msgspec.Raw
    """Input for the handler: JSON of up to 64 KiB, unchanged."""
    run_at: datetime
    """Time before which the job does not start."""
    attempts: int
    """Number of times the job was claimed."""
    failures: int
    """Number of failed attempts. The job is dead when it reaches `max_attempts`."""
    crashes: int
    """Number of attempts whose lease expired. The job is dead when it reaches the crash cap of its definition."""
    max_attempts: int
    """Number of failures after which the job is dead."""
    fence: int
    """Number of the latest claim."""
    source: Source
    """Kind of cause that created the job."""
    depth: int
    """Number of causes behind the job."""
    created_at: datetime
    """When the job was created."""
    source_ref: str | None = None
    """Reference to the cause, such as an ID."""
    created_by: str | None = None
    """Caller that created the job, such as `token:` and an ID."""
    idempotency_key: str | None = None
    """Key that makes the request repeatable: the same key returns the same job."""
    dedupe_key: str | None = None
    """Key that only one unfinished job of a tenant can have."""
    correlation_id: str | None = None
    """ID that connects the job with something outside of Ingot."""
    trace_id: str | None = None
    """ID of the trace that the job belongs to."""
    after: tuple[str, ...] = ()
    """IDs of the jobs that this job waits for."""
    on_dead: OnDead = OnDead.CANCEL
    """Whether the job is canceled or runs when a job that it waits for is dead or canceled."""
    batch: str | None = None
    """Name of the batch that the job belongs to."""
    inputs: dict[str, str] = {}
    """IDs of the input blobs by name. Inputs that are still being uploaded are missing."""
    payload_blob: str | None = None
    """ID of the blob with the payload, if the payload is larger than 64 KiB. `payload` is then `null`."""
    metadata: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)
    """JSON that was stored with the job, unchanged."""
    tags: tuple[str, ...] = ()
    """Words by which the job can be found."""
    worker_id: str | None = None
    """ID of the worker that has or last had the job."""
    started_at: datetime | None = None
    """When the latest attempt began."""
    lease_expires_at: datetime | None = None
    """When the lease of the running attempt expires unless it is renewed."""
    cancel_requested: bool = False
    """Whether the running attempt was asked to stop."""
    progress: Progress | None = None
    """Last reported progress."""
    result: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)
    """Result of the handler: JSON of up to 64 KiB, unchanged."""
    last_error: str | None = None
    """Latest error message."""
    finished_at: datetime | None = None
    """When the job finished."""

    @property
    def has_files(self) -> bool:
        """Whether a worker needs access to files to run the job: for its inputs, or for a payload in a blob."""
        return bool(self.inputs) or self.payload_blob is not None

    def read(self, part: Literal["payload", "metadata", "result"] = "payload") -> Any:
        """Decode one of the JSON fields."""
        return msgspec.json.decode(getattr(self, part))


class Enqueued(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The job that was created or already existed."""

    job: Job
    """The job."""
    created: bool
    """Whether this request created the job."""
    reused: bool = False
    """Whether an existing job that does the same work was returned."""


class Claim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job that is leased to a worker. Calls with its `fence` are accepted until the job is claimed again."""

    job: Job
    fence: int
    lease_expires_at: datetime
    timeout_seconds: float


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A renewed lease."""

    job_id: str
    """ID of the job."""
    lease_expires_at: datetime
    """When the lease expires unless it is renewed."""
    cancel_requested: bool
    """Whether the handler should stop. The worker then settles the attempt."""


class Done(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="done"):
    """The attempt succeeded."""

    result: bytes | None = None
    """JSON text, stored unchanged."""
    outputs: tuple[str, ...] = ()
    """Names of outputs that the attempt must have uploaded."""


class Failed(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="failed"):
    """The attempt failed. With `retry=False` the job is not tried again.

    `timed_out` means that the attempt exceeded its maximum duration.
    """

    error: str
    retry: bool = True
    exit_code: int | None = None
    timed_out: bool = False


class Snooze(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="snooze"):
    """The job runs again after a delay. This counts neither as a failure nor as a crash."""

    delay: int
    """Microseconds until the job runs again."""


class Release(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="release"):
    """The worker released the unfinished job, as in a drain or after a cancel request.

    This counts neither as a failure nor as a crash.
    """


class Lost(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="lost"):
    """The lease expired, so the worker is considered dead. Only the sweep uses this outcome."""


Outcome = Done | Failed | Snooze | Release


class Settle(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How the attempt with this fence ended."""

    job_id: str
    fence: int
    outcome: Outcome
    tenant: str | None = None
    """Tenant that the job must belong to; `None` for any."""
    worker: str | None = None
    """Worker, or credential of the worker, that the attempt must belong to; `None` for any."""


class Settled(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The state of a job after its attempt was settled."""

    job_id: str
    """ID of the job."""
    tenant: str
    """ID of the tenant."""
    status: JobStatus
    """Status of the job after the attempt."""
    attempts: int
    """Number of times the job was claimed."""
    will_retry: bool
    """Whether the job will run again."""
    run_at: datetime | None
    """When the job will run again."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One run of a job."""

    job_id: str
    """ID of the job."""
    number: int
    """Number of the attempt, starting at 1."""
    fence: int
    """Number of the claim that began the attempt."""
    worker_id: str
    """ID of the worker."""
    started_at: datetime
    """When the worker claimed the job."""
    host: str | None = None
    """Name of the machine on which the attempt runs."""
    pid: int | None = None
    """ID of the process in which the attempt runs."""
    finished_at: datetime | None = None
    """When the attempt ended."""
    outcome: AttemptOutcome | None = None
    """How the attempt ended; `null` while it runs."""
    status_after: JobStatus | None = None
    """Status of the job after the attempt."""
    exit_code: int | None = None
    """Exit code of the process in which the attempt ran, if it was reported."""
    error: str | None = None
    """Error message from the worker."""
    progress: Progress | None = None
    """Last reported progress."""


class JobLog(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A part of the log of an attempt. Positions count characters from the beginning of the whole log."""

    job_id: str
    """ID of the job."""
    attempt: int
    """Number of the attempt, starting at 1; 0 if the job was never claimed."""
    fence: int
    """Fence of the attempt."""
    start: int = msgspec.field(name="from")
    """Position of the first character of `text`. Greater than the requested position if older text was removed."""
    to: int
    """Position after the last character of `text`. Continue reading there."""
    text: str
    """Text of the log."""
    live: bool
    """Whether the attempt can still write to the log."""
    attempts: int
    """Number of attempts of the job."""
    status: JobStatus
    """Status of the job."""


class JobEventData(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The data of an event about a job: its state after the event, without its large fields."""

    id: str
    type: str
    status: JobStatus
    attempts: int = 0
    failures: int = 0
    crashes: int = 0
    fence: int = 0
    worker_id: str | None = None
    run_at: datetime | None = None
    will_retry: bool | None = None
    error: str | None = None
    cancel_requested: bool = False
    progress: Progress | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The exact numbers of jobs in a batch of a tenant."""

    batch: str
    """Name of the batch."""
    total: int
    """Number of jobs in the batch."""
    unfinished: int
    """Number of blocked, queued and running jobs."""
    succeeded: int = 0
    """Number of succeeded jobs."""
    dead: int = 0
    """Number of dead jobs."""
    canceled: int = 0
    """Number of canceled jobs."""


class Summary(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The numbers of jobs of a tenant. They are exact unless `more` is true."""

    counts: dict[JobStatus, int]
    """Number of jobs by status."""
    running: int
    """Number of running jobs."""
    oldest_queued_seconds: float | None
    """Seconds for which the oldest ready job has been waiting; `null` if no job is ready."""
    more: bool = False
    """Whether there are more jobs than were counted."""


class LimitUsage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A limit on running jobs, and how much of it is used."""

    scope: Literal["tenant", "type", "key"]
    maximum: int
    running: int
    holders: list[str]
    """IDs of some of the running jobs."""


class WaitState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The facts that can keep a job from running, as read from the store."""

    job: Job
    now: datetime
    limit_key: str = ""
    jobs_ahead: int = 0
    """Number of ready jobs of the same type and limit key that come first, up to `JOBS_AHEAD_MAX`."""
    pause: Pause | None = None
    parents: list[tuple[str, JobStatus | None]] = []
    """Unfinished parents of a blocked job, or the parents because of which a canceled job did not run.

    Without the statuses of other jobs, all parents.
    """
    canceled_by: str | None = None
    """Caller that canceled the job, or asked it to stop."""
    uploads: list[str] = []
    """Names of inputs that are still being uploaded."""
    limits: list[LimitUsage] = []
    last_claim_at: datetime | None = None
    """When a worker last tried to claim jobs of this type. If the job has files, only workers with files count."""
    last_claim_without_files_at: datetime | None = None
    """If the job has files: when a worker, with or without access to files, last tried to claim jobs of this type."""


class Reason(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A reason why a job is not running."""

    code: str
    """Kind of the reason, for programs."""
    message: str
    """The reason in a sentence."""
    data: dict[str, Any] = {}
    """Facts behind the reason."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The reasons why a job is not running."""

    job_id: str
    """ID of the job."""
    status: JobStatus
    """Status of the job."""
    reasons: list[Reason]
    """Reasons why the job is not running, the most important first."""


class MaintenanceResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of one round of maintenance."""

    promoted: int = 0
    """Number of jobs that became due."""
    swept: int = 0
    """Number of leases that had expired."""


class LostLease(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An attempt that ended because its lease had expired, and whether its job is dead now."""

    tenant: str
    job_id: str
    type: str
    worker_id: str
    is_dead: bool


class JobCollectionResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of one round of retention."""

    removed: int = 0
    kept: int = 0
    """Number of removed jobs that were kept as history entries."""
    more: bool = False
    """Whether there are more jobs to remove."""


class RetentionPreview(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The finished jobs of one type that retention will remove next."""

    type: str
    jobs: int
    oldest_finished_at: datetime
    more: bool = False
    """Whether there are more jobs than were counted."""


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A short entry about a removed job. `last_error` is truncated."""

    id: str
    tenant: str
    type: str
    status: JobStatus
    attempts: int
    created_at: datetime
    finished_at: datetime
    last_error: str | None = None
