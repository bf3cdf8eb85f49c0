"""What a job is, and what is said about one."""

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

    __hash__ = str.__hash__  # An enum's own is written in Python, and every count asks for it.

    BLOCKED = "blocked"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELED = "canceled"


class AttemptOutcome(StrEnum):
    """How an attempt ended: what the worker said, or that it went silent."""

    __hash__ = str.__hash__  # As above.

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SNOOZED = "snoozed"
    RELEASED = "released"
    LOST = "lost"


class Source(StrEnum):
    """What caused a job."""

    MANUAL = "manual"
    EVENT = "event"
    SCHEDULE = "schedule"
    SYSTEM = "system"
    DOCUMENT = "document"


class OnDead(StrEnum):
    """What becomes of a job when one it waits for is dead or canceled."""

    CANCEL = "cancel"
    RUN = "run"


class Backoff(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """How long a failed job waits: `first_seconds`, then `factor` times more each time, never over `max_seconds`."""

    first_seconds: float = 1.0
    """Pause after the first failure, in seconds."""
    factor: float = 2.0
    """Factor by which the pause grows with every further failure."""
    max_seconds: float = 3600.0
    """Longest pause, in seconds."""


class Definition(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What jobs of a type get when they do not say otherwise. `tenant` is `None` in a definition for all.

    `max_running` is how many of a tenant's jobs of this type may run at once. `limit_key` names parts of the payload,
    as in `{account.id}`; of the jobs for which they are the same, `max_running_per_key` may run at once. Jobs whose
    payload has none of them are not limited by key.

    With `reuse` a job that asks for the same as one before it (type, `version` of the definition, payload and inputs)
    is not made: that one is the answer, unless it is dead or canceled.

    Finished jobs are removed after `retention_seconds`; `None` leaves that to the tenant's limits, and with none there
    they are kept for ever. With `keep_history` a short entry about each is left in the history.
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
    """A tenant's jobs of this type are not handed out. Those that run go on."""

    type: str
    """Job type."""
    since: datetime
    """When the type was paused."""
    by: str | None = None
    """Caller that paused the type."""


class Progress(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How far an attempt has come."""

    percent: float
    """Percentage of the work that is done, from 0 to 100."""
    stage: str = ""
    """Current stage in a few words."""


class NewJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job to be enqueued. `payload` and `metadata` are JSON text as bytes, kept as received.

    `inputs` are the blobs that it works on, by name, and `uploads` those that are still to come. A payload that is too
    large to travel inside is the blob `payload_blob`, and `payload` is `null` then. `owner_quota` is how many bytes the
    one who makes it may keep.
    """

    id: str
    tenant: str
    type: str
    payload: bytes = b"null"
    priority: int | None = None
    run_at: int | None = None
    delay: int = 0
    max_attempts: int | None = None
    idempotency_key: str | None = None
    payload_digest: bytes | None = None
    dedupe_key: str | None = None
    tags: tuple[str, ...] = ()
    metadata: bytes | None = None
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
    payload_blob: str | None = None
    owner_quota: int | None = None
    force: bool = False


class Job(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One piece of work, as it stands now.

    `attempts` counts claims; `failures` counts against `max_attempts`, `crashes` (lost leases) against the
    crash cap of its definition. `fence` is the number of the latest claim. `payload`, `metadata` and `result` are
    JSON text as it was received; `read` makes values of it. `inputs` are the ids of the blobs that it works on, by
    name, as far as they are here. With a `payload_blob` that blob holds the payload.
    """

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

    def read(self, part: Literal["payload", "metadata", "result"] = "payload") -> Any:
        """The value that a JSON part stands for."""
        return msgspec.json.decode(getattr(self, part))


class Enqueued(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The job, and whether this call made it: its idempotency key may have made it before, or it is `reused`."""

    job: Job
    """The job."""
    created: bool
    """Whether this request created the job."""
    reused: bool = False
    """Whether an existing job that does the same work was returned."""


class Claim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job handed to a worker. `fence` proves the right to it until somebody else gets a higher one."""

    job: Job
    fence: int
    lease_expires_at: datetime
    timeout_seconds: float


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The lease renewed, and whether somebody wants the job to stop."""

    job_id: str
    """ID of the job."""
    lease_expires_at: datetime
    """When the lease expires unless it is renewed."""
    cancel_requested: bool
    """Whether the handler should stop. The worker then settles the attempt."""


class Done(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="done"):
    """The work is done. `result` is JSON text as bytes. `outputs` names files that must have been uploaded for it."""

    result: bytes | None = None
    outputs: tuple[str, ...] = ()


class Failed(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="failed"):
    """The work failed; with `retry=False` it is not tried again."""

    error: str
    retry: bool = True
    exit_code: int | None = None


class Snooze(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="snooze"):
    """Not now: try again after `delay` microseconds. Counts against nothing."""

    delay: int


class Release(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="release"):
    """Given back unfinished, as in a drain. Counts against nothing."""


class Lost(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="lost"):
    """The lease ran out: the worker is taken for dead. Only the sweep says this."""


Outcome = Done | Failed | Snooze | Release


class Settle(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How the attempt with this fence ended.

    `tenant` restricts whose job it may be, and `worker` whose attempt: a worker's, or any instance's of a credential.
    """

    job_id: str
    fence: int
    outcome: Outcome
    tenant: str | None = None
    worker: str | None = None


class Settled(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where the job stands after its attempt was settled."""

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
    """One run of a job. `outcome` is `None` while it runs."""

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
    """What an attempt has written, from one character on; places are counted in characters of the whole text.

    `start`, on the wire `from`, is where the text begins: when it is greater than what was asked for, what lies before
    it is not there any more. `to` is where the text ends, and where the next read begins. With `live` the attempt runs.
    The attempt 0 is that of a job that was never claimed.
    """

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
    """What an event says about a job: where it stands after what happened, without its wide parts."""

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
    """The jobs of a tenant that were enqueued under one name, in numbers, exact."""

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
    """A tenant's jobs in numbers, exact. With `more` there are more than were counted: not all were looked at."""

    counts: dict[JobStatus, int]
    """Number of jobs by status."""
    running: int
    """Number of running jobs."""
    oldest_queued_seconds: float | None
    """Seconds for which the oldest ready job has been waiting; `null` if no job is ready."""
    more: bool = False
    """Whether there are more jobs than were counted."""


class LimitUsage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A limit on what runs at once, how many jobs run under it, and some of them."""

    scope: Literal["tenant", "type", "key"]
    maximum: int
    running: int
    holders: list[str]


class WaitState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What keeps a job from running, as the store finds it.

    `ahead` counts the ready jobs of its type and limit key that go before it, up to `AHEAD_MAX`. `asked_at` is when a
    worker last asked for its type.
    """

    job: Job
    now: datetime
    limit_key: str = ""
    jobs_ahead: int = 0
    pause: Pause | None = None
    parents: list[tuple[str, JobStatus]] = []
    uploads: list[str] = []  # The names of inputs that are still to come.
    limits: list[LimitUsage] = []
    last_claim_at: datetime | None = None


class Reason(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One thing that keeps a job from running, in words and as data."""

    code: str
    """Kind of the reason, for programs."""
    message: str
    """The reason in a sentence."""
    data: dict[str, Any] = {}
    """Facts behind the reason."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why a job is where it is. The first reason is the one to look at first."""

    job_id: str
    """ID of the job."""
    status: JobStatus
    """Status of the job."""
    reasons: list[Reason]
    """Reasons why the job is not running, the most important first."""


class MaintenanceResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a round of tending did: jobs that became due, leases that had run out."""

    promoted: int = 0
    swept: int = 0


class JobCollectionResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a collection did: jobs removed, those of them kept as history, and whether there are more to remove."""

    removed: int = 0
    kept: int = 0
    more: bool = False


class RetentionPreview(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Finished jobs of one type that the next collections remove. With `more` there are more than were counted."""

    type: str
    jobs: int
    oldest_finished_at: datetime
    more: bool = False


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is kept of a job that was removed. `last_error` is cut short."""

    id: str
    tenant: str
    type: str
    status: JobStatus
    attempts: int
    created_at: datetime
    finished_at: datetime
    last_error: str | None = None
