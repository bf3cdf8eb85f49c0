"""The commands for jobs and workers that an engine implements, and the protocols of the stores that run them.

`ingot.kernel.commands` explains commands. Times are microseconds since 1970, and durations are microseconds, unless a
name says otherwise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from ingot.events.audit import Act
from ingot.jobs.metrics import Depth, Listener, Load, StoreDescription
from ingot.jobs.model import (
    Attempt,
    Batch,
    Claim,
    Enqueued,
    Heartbeat,
    HistoryEntry,
    Job,
    JobCollectionResult,
    JobLog,
    JobStatus,
    LostLease,
    MaintenanceResult,
    NewJob,
    RetentionPreview,
    Settle,
    Settled,
    Source,
    Summary,
    WaitState,
)
from ingot.jobs.worker_model import (
    HeartbeatAnswer,
    LeaseStatus,
    RegisteredWorker,
    WorkerKey,
    WorkerMaintenanceResult,
    WorkerStatus,
)
from ingot.kernel.commands import Command, Store
from ingot.kernel.errors import IngotError
from ingot.records.ports import RecordStore


class Enqueue(Command[list[Enqueued]], frozen=True, kw_only=True):
    """Accept these jobs, all or none, in the given order.

    Priority and `max_attempts` default to those of the definition. A `run_at` in the past means now. Raises
    `TenantNotFound` if the tenant does not exist.

    Existing jobs:

    - If a job of the same tenant and type was created with the same `idempotency_key`, that job is returned with
      `created=False`, whatever its status, for as long as it is stored. Raises `IdempotencyMismatch` if the payload
      differs.
    - Raises `DuplicateJob`, with the ID of the holder, if a blocked, queued or running job of the tenant holds the
      `dedupe_key`.
    - If a job with the same ID exists, because the command is repeated after an unknown outcome, that job is returned.
    - If the definition sets `reuse` and an equivalent job of the tenant is blocked, queued, running or succeeded, that
      job is returned with `reused=True`. With `force` a new job is created, and reused from then on.

    Parents:

    - A job with `after` is blocked until all jobs that it names have succeeded. It is then queued, or starts at its
      `run_at` if that is later. Jobs may wait for jobs of the same command. Raises `ParentNotFound` if a parent does
      not exist in the tenant.
    - If a parent is or becomes dead or canceled, the job is canceled, and so are its own dependents. With `on_dead=run`
      such a parent counts as succeeded.
    - Dependents are moved soon after their last parent has ended, in bounded steps.

    Limits, which count new jobs and retries only: raises `JobLimitExceeded` if the tenant would have more than
    `max_unfinished_jobs` blocked, queued and running jobs, `TypeLimitExceeded` if it would have jobs of more than
    `max_job_types` types, and `RateLimited` if it enqueues faster than `rate` and `burst` allow.
    """

    jobs: Sequence[NewJob]


class ClaimJobs(Command[list[Claim]], frozen=True, kw_only=True):
    """Lease up to `limit` due jobs of these types to a worker: by priority, then `run_at`, then ID.

    `tenant=None` claims jobs of every tenant. Raises `TenantNotFound` if the tenant does not exist.

    - Two calls never receive the same attempt. The fence of a claim is higher than all earlier fences of the job, also
      across restarts, and below 2**53. A claim also creates the row of the attempt.
    - Tenants with ready jobs take turns by weight. Within a tenant the order is strict.
    - No more jobs run at once than `max_running_jobs` of the tenant, and `max_running` and `max_running_per_key` of the
      definition, allow. Jobs that have to wait for such a limit are passed over. Jobs of paused types are not handed
      out.
    - A claim also does the work of `MaintainJobs` when that is due. If more jobs become due than one round promotes,
      they become ready in the order of their times.
    """

    worker_id: str
    types: Sequence[str]
    limit: int
    lease: int
    tenant: str | None = None
    host: str | None = None
    pid: int | None = None


class AttemptHeartbeat(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Renewal of the lease of one attempt, with its progress. `tenant` and `worker` restrict it as in `Settle`."""

    job_id: str
    fence: int
    lease: int
    tenant: str | None = None
    worker: str | None = None
    percent: float | None = None
    stage: str | None = None


class RenewLeases(Command[list[Heartbeat | IngotError]], frozen=True, kw_only=True):
    """Renew these leases, and return one result or error for each, in order. An error does not affect the others.

    The error is `JobNotFound` if the job does not exist in the tenant, and `LeaseLost` unless the fence is the current
    fence of a running job and the attempt belongs to the given worker, if any. A lease that has expired but was not
    swept is renewed. New progress is stored, and reported in an event at most once per second and job.
    """

    beats: Sequence[AttemptHeartbeat]


class LogEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Text that the attempt with this fence wrote.

    `offset` is the number of characters that the attempt sent before, or `None` if unknown. `tenant` and `worker`
    restrict the entry as in `Settle`.
    """

    job_id: str
    fence: int
    text: str
    offset: int | None = None
    tenant: str | None = None
    worker: str | None = None


class AppendLogs(Command[list[int | IngotError]], frozen=True, kw_only=True):
    """Append these texts to the logs of their attempts, and return for each, in order, where the log ends now.

    The errors are those of `RenewLeases`; a text with an error is not stored. If the `offset` of a text lies before the
    end of the log, only the new part is appended, so that a repeated text adds nothing. If the `offset` lies behind the
    end, the log has a gap. The last `LOG_TAIL_CHARS_MAX` characters of each attempt can be read for as long as the job
    is stored. No events are written.
    """

    entries: Sequence[LogEntry]


class SettleJobs(Command[list[Settled | IngotError]], frozen=True, kw_only=True):
    """Record the outcomes of these attempts, and return one result or error for each, in order.

    An error does not affect the others. `judge` decides the next status of each job. The errors are those of
    `RenewLeases`, with one exception: if the same outcome is sent again with the same fence, the first result is
    returned again, for as long as the attempt is stored. A different outcome gets `LeaseLost`.
    """

    settles: Sequence[Settle]


class CancelJob(Command[Job], frozen=True, kw_only=True):
    """Cancel a waiting job at once, or record that a running job has to stop. `by` is stored for explanations.

    Canceling again changes nothing. Raises `JobNotFound` if the job does not exist in the tenant, and `JobFinished` if
    it is succeeded or dead. A canceled job stays canceled unless it is retried on request.
    """

    tenant: str
    job_id: str
    by: str | None = None


class RetryJob(Command[Job], frozen=True, kw_only=True):
    """Put a finished job back in the queue, and append an event.

    `priority` and `max_attempts` stay as they are if `None`; `run_at=None` means now. `reset_attempts` sets `failures`
    and `crashes` to zero; `attempts` is never reset.

    Raises `JobNotFound`, `JobNotFinished` if the job is not finished, `DuplicateJob` if another unfinished job holds
    its dedupe key, and `JobLimitExceeded` or `RateLimited` as in `Enqueue`.
    """

    tenant: str
    job_id: str
    reset_attempts: bool = False
    priority: int | None = None
    max_attempts: int | None = None
    run_at: int | None = None


class ChangeJob(Command[Job], frozen=True, kw_only=True):
    """Change the priority, start time or maximum attempts of a waiting job, or the tags of any job.

    `None` leaves a field unchanged. Raises `JobNotFound`, and `JobNotQueued` if more than tags should change and the
    job is running or finished.
    """

    tenant: str
    job_id: str
    priority: int | None = None
    run_at: int | None = None
    max_attempts: int | None = None
    tags: Sequence[str] | None = None


class MaintainJobs(Command[MaintenanceResult], frozen=True, kw_only=True):
    """Promote jobs that have become due, and sweep leases that have expired, a bounded number of each.

    The attempt of a swept job is lost. The job returns to the queue after 0 to 5 seconds, is dead if it has reached its
    crash cap, or is canceled if that was requested. Nothing is swept within one lease duration after the store was
    opened, so that workers can renew their leases after a restart.
    """


class CollectJobs(Command[JobCollectionResult], frozen=True, kw_only=True):
    """Remove up to `limit` finished jobs of any tenant whose retention has passed.

    Within a type, the jobs that finished first go first. For a job that was retried, an earlier end may decide its
    position in this order, but no job is removed before its retention has passed.

    The retention is the one that the definition has now, or else that of the tenant's limits. It begins when the job
    finished last. A job is removed with its attempts and tags, its idempotency key becomes free, and counters no longer
    include it. With `keep_history` a history entry remains. Jobs that are not finished, or are retried meanwhile, are
    never touched. No events are written.
    """

    limit: int


class JobFilter(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A selection of the jobs of a tenant. A field that is `None` selects all jobs.

    `created_after` is inclusive, `created_before` is exclusive.
    """

    tenant: str
    status: JobStatus | None = None
    type: str | None = None
    tag: str | None = None
    source: Source | None = None
    created_after: int | None = None
    created_before: int | None = None


class ReadLog(Command[JobLog | None], frozen=True, kw_only=True):
    """Read the log of an attempt from the character `after` up to the next gap, as a consistent snapshot.

    `attempt=None` reads the newest attempt. Every job has an attempt 0, whose log is empty. The result is `None` if the
    job does not exist in the tenant or has no such attempt.
    """

    tenant: str
    job_id: str
    attempt: int | None
    after: int


class PreviewRetention(Command[list[RetentionPreview]], frozen=True, kw_only=True):
    """Count the jobs of a tenant that `CollectJobs` would remove now, by type, up to a bounded number of each type.

    Raises `TenantNotFound` if the tenant does not exist.
    """

    tenant: str


class ListHistory(Command[tuple[list[HistoryEntry], str | None]], frozen=True, kw_only=True):
    """Read history entries, last finished first, starting after the position `before`.

    The result holds the entries and the position to continue from, which is `None` on the last page. Raises
    `TenantNotFound` if the tenant does not exist.
    """

    tenant: str
    type: str | None
    before: str | None
    limit: int


class ListLeases(Command[list[tuple[str, int]]], frozen=True, kw_only=True):
    """Read up to `limit` running jobs, each with its fence, of a worker or of all instances of a worker credential.

    `tenant=None` reads the jobs of all tenants.
    """

    worker: str
    tenant: str | None
    limit: int


class GetJob(Command[Job | None], frozen=True, kw_only=True):
    """Read a job. The result is `None` if it does not exist in the tenant."""

    tenant: str
    job_id: str


class ListJobs(Command[tuple[list[Job], str | None]], frozen=True, kw_only=True):
    """Read jobs, newest first, starting after the position `before`.

    The result holds the jobs and the position to continue from, which is `None` on the last page. Every returned job
    matches the filter, in the state in which it is returned. A bounded number of rows is examined, so a page may be
    short or empty although more jobs follow. Raises `TenantNotFound` if the tenant does not exist.

    From the first page to the last, no job is returned twice. Every job that existed before the first page was read and
    matches the filter throughout is returned. Jobs that are created, or begin or cease to match, in the meantime may or
    may not be returned. The position of a job never changes: depending on the engine, jobs are ordered by acceptance or
    by ID. The IDs of new jobs that one process creates are ascending.
    """

    where: JobFilter
    before: str | None
    limit: int


class ListAttempts(Command[list[Attempt]], frozen=True, kw_only=True):
    """Read the attempts of a job, oldest first. The result is empty if the job does not exist in the tenant."""

    tenant: str
    job_id: str


class SummarizeJobs(Command[Summary], frozen=True, kw_only=True):
    """Count a tenant's jobs by status, exactly, and report how long the oldest ready job has waited.

    With a `type`, only jobs of that type are considered. PostgreSQL searches at most 1,000 lanes for the oldest job.
    Raises `TenantNotFound` if the tenant does not exist.
    """

    tenant: str
    type: str | None = None


class CountMatchingJobs(Command[tuple[dict[JobStatus, int], bool]], frozen=True, kw_only=True):
    """Count the jobs that match a filter by status, and report whether there may be more than were counted.

    A bounded number of rows is examined. Statuses without jobs are omitted. Raises `TenantNotFound` if the tenant does
    not exist.
    """

    where: JobFilter


class GetWaitState(Command[WaitState | None], frozen=True, kw_only=True):
    """Read what keeps a job from running, at a bounded cost. The result is `None` if the tenant has no such job."""

    tenant: str
    job_id: str


class GetBatch(Command[Batch | None], frozen=True, kw_only=True):
    """Count the jobs of a batch. The result is `None` if the tenant has no batch of that name.

    Each time the last unfinished job of a batch ends, an event `batch.completed` reports these numbers.
    """

    tenant: str
    batch: str


class CountJobs(Command[dict[str, dict[JobStatus, int]]], frozen=True, kw_only=True):
    """Count a tenant's jobs by type and status, exactly. The result is sorted by type.

    Types and statuses without jobs are omitted. Raises `TenantNotFound` if the tenant does not exist.
    """

    tenant: str


class ListQueueDepths(Command[list[Depth]], frozen=True, kw_only=True):
    """Count the jobs of all tenants by status, exactly: the oldest `tenants_max` tenants each, the others together.

    At most `lanes_max` lanes are searched for the oldest ready jobs, taking the tenants and types in turn. PostgreSQL
    searches about 1,000 types of each tenant.
    """

    tenants_max: int
    lanes_max: int


class DescribeStore(Command[StoreDescription], frozen=True):
    """Read the version, the schema and the size of the database. On PostgreSQL, this looks at every file of it."""


class JobStore(RecordStore, Protocol):
    """An engine that stores jobs and reports what happens to them."""

    def measure_load(self) -> Awaitable[Load]:
        """Measure the current load of the store."""

    def add_listener(self, listener: Listener) -> None:
        """Report ended attempts, canceled jobs and committed batches to this listener, each exactly once."""

    def coalesce_commands(self) -> None:
        """Gather commands that arrive together into batches from now on. Called by processes with many callers."""

    def on_ready(self, callback: Callable[[str, str, int], object]) -> None:
        """Call `callback(tenant, type, count)` on the event loop after jobs became ready.

        The call is only a hint: it may be missing, and the jobs may be gone.
        """

    def on_upcoming_jobs(self, wake: Callable[[str, str, int], int]) -> None:
        """Call `wake(tenant, type, count)` for jobs that are about to become ready.

        `wake` wakes up to `count` waiting claims that could take such jobs, and returns how many it woke. A claim that
        then finds nothing keeps waiting.
        """

    def on_leases_lost(self, callback: Callable[[Sequence[LostLease]], None]) -> None:
        """Call `callback(leases)` on the event loop after this process swept leases that had expired."""

    def tick(self) -> None:
        """Record that this process runs. Called about once a second, so that the store notices when it was suspended.

        After that, expired leases are not swept within one lease, so that workers can renew them.
        """

    def on_maintenance_rescheduled(self, callback: Callable[[], None]) -> None:
        """Call `callback()` on the event loop after maintenance became due earlier than before. Only a hint."""

    def on_schema_mismatch(self, callback: Callable[[], None]) -> None:
        """Call `callback()` on the event loop when commands begin to raise `SchemaMismatch`."""

    def seconds_to_maintenance(self) -> float | None:
        """Return the time until a job becomes due or a lease expires, or `None` if unknown. Runs no query."""


class RegisterWorker(Command[RegisteredWorker], frozen=True, kw_only=True):
    """Store a worker, or update what is stored about it. The worker is then online and not draining.

    `tenant=None` registers a shared worker. An event is appended if the worker is new or was offline. Raises
    `TenantNotFound` if the tenant does not exist.
    """

    tenant: str | None
    worker_id: str
    types: Sequence[str]
    hostname: str | None = None
    version: str | None = None
    protocol: int | None = None
    metadata: bytes | None = None
    by: str | None = None


class WorkerHeartbeat(Command[HeartbeatAnswer], frozen=True, kw_only=True):
    """Renew the leases that a worker names, and release its other jobs.

    `beats` names all jobs on which the worker is working, each once. Each lease is renewed as in `RenewLeases`. Jobs
    that were claimed under this worker ID more than `grace` ago and are not named are unknown to the worker: they are
    released as in `SettleJobs`, which counts against nothing. For a shared worker, this covers all tenants.

    The time of the heartbeat is stored if the stored one is at least `record_seen_after` old. A worker that was offline
    is online again, and an event is appended. Raises `WorkerNotFound`, and then does nothing.
    """

    tenant: str | None
    worker_id: str
    beats: Sequence[AttemptHeartbeat]
    grace: int
    record_seen_after: int


class DrainWorker(Command[RegisteredWorker], frozen=True, kw_only=True):
    """Hand out no more jobs to a worker. Draining again changes nothing. Raises `WorkerNotFound`.

    `act` is `None` if the worker itself requests this; then no audit entry is written.
    """

    tenant: str | None
    worker_id: str
    act: Act | None


class RemoveWorker(Command[bool], frozen=True, kw_only=True):
    """Release up to `limit` jobs of a worker, and remove the worker, with an event if it was not offline.

    The result is `False` if the worker held more jobs than `limit`. Then it still exists, and the command has to be
    repeated. `act` is `None` if the worker itself requests this; then no audit entry is written. Raises
    `WorkerNotFound`.
    """

    tenant: str | None
    worker_id: str
    limit: int
    act: Act | None


class MaintainWorkers(Command[WorkerMaintenanceResult], frozen=True, kw_only=True):
    """Mark silent workers as offline, each with an event, and remove workers that have been offline for long.

    A worker is marked offline after `offline_after` without a heartbeat, but not within one lease duration after the
    store was opened. It is removed after `remove_after`. Each step affects up to `limit` workers.
    """

    offline_after: int
    remove_after: int
    limit: int


class GetWorker(Command[RegisteredWorker | None], frozen=True, kw_only=True):
    """Read a worker. The result is `None` if it does not exist.

    The status of a worker is `silent` if it was online or draining and its last sign of life is `silent_after` old.
    """

    tenant: str | None
    worker_id: str
    silent_after: int


class ListWorkers(Command[list[RegisteredWorker]], frozen=True, kw_only=True):
    """Read the workers of a tenant, or the shared workers if `tenant` is `None`, by ID, starting after the ID `after`.

    `silent_after` decides their status as in `GetWorker`. Raises `TenantNotFound` if the tenant does not exist.
    """

    tenant: str | None
    after: str | None
    limit: int
    silent_after: int


class ListWorkersOfType(Command[list[RegisteredWorker]], frozen=True, kw_only=True):
    """Read up to `limit` workers that run jobs of a type in a tenant: its own and the shared ones, last seen first.

    With `of_other_tenants`, read the workers of other tenants that run this type instead. `silent_after` decides their
    status as in `GetWorker`.
    """

    tenant: str
    type: str
    limit: int
    silent_after: int
    of_other_tenants: bool = False


class ListDrainingWorkers(Command[list[WorkerKey]], frozen=True, kw_only=True):
    """Read all draining workers of all tenants that are not offline."""


class CountWorkers(Command[dict[WorkerStatus, int]], frozen=True, kw_only=True):
    """Count the workers of all tenants, and those that are shared, by status. A status without workers counts 0.

    `silent_after` decides their status as in `GetWorker`.
    """

    silent_after: int


class CheckLeases(Command[list[LeaseStatus]], frozen=True, kw_only=True):
    """Read the current state of these leases with one query, one result for each, in order. Renews nothing."""

    leases: Sequence[LeaseStatus]


class WorkerStore(Store, Protocol):
    """An engine that stores workers by tenant and ID."""

    # True if no other process writes to the store, so that there are no changes of others to poll for.
    is_exclusive: bool
