"""What the jobs room asks of an engine: its commands (see `ingot.kernel.commands`), and what the store tells it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from ingot.events.audit import Act
from ingot.jobs.metrics import Depth, Listener, Load
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
    MaintenanceResult,
    NewJob,
    RetentionPreview,
    Settle,
    Settled,
    Source,
    Summary,
    WaitState,
)
from ingot.jobs.worker_model import HeartbeatAnswer, LeaseStatus, RegisteredWorker, WorkerKey, WorkerMaintenanceResult
from ingot.kernel.commands import Command, Store
from ingot.kernel.errors import IngotError
from ingot.records.ports import RecordStore


class Enqueue(Command[list[Enqueued]], frozen=True, kw_only=True):
    """Accept these jobs, all or none, in the order given.

    A job whose `idempotency_key` made a job of the same tenant and type before is not made again: the
    answer is that job with `created=False`, whatever its status, as long as its row lives. With another
    payload: `IdempotencyMismatch`. A `dedupe_key` held by a blocked, queued or running job of the tenant:
    `DuplicateJob` with the holder's id. An unknown tenant: `TenantNotFound`. Without a priority or
    `max_attempts` of its own a job takes those of its definition. A `run_at` in the past means now. An order
    whose id is there already, as when it is sent again after an unknown outcome, answers with that job.

    A job with `after` is blocked until every job it names has succeeded, and is queued then, or at its `run_at`
    when that is later. When one of them is dead or canceled, at whatever time, it is canceled, unless it says
    `on_dead=run`: then that one is as good as succeeded. Jobs may wait for jobs of the same command.
    `ParentNotFound` for one that is not there or not in the tenant. What waits is moved soon after the
    last it waited for ended, in bounded steps; canceling passes on to those that wait for what was canceled.

    When its definition says `reuse` and a job of the tenant asks for the same as one before it that is blocked,
    queued, running or succeeded, the answer is that one with `reused=True`; with `force` it is made, and is the one
    to be reused from then on.

    `JobLimitExceeded` when the tenant would have more than `max_unfinished_jobs` blocked, queued or running;
    `RateLimited` when it enqueues faster than `rate` and `burst`. Both count new jobs only, and a retry too.
    """

    jobs: Sequence[NewJob]


class ClaimJobs(Command[list[Claim]], frozen=True, kw_only=True):
    """Lease up to `limit` due jobs of these types to a worker: by priority, then `run_at`, then id.

    `tenant=None` serves every tenant.

    Two calls never receive the same attempt. Every claim has a fence higher than any fence the job had
    before, across restarts too, below 2**53, and writes the attempt's row. Claims also do what `Tend` does,
    when it is time for it; when more jobs become due together than one round promotes, they join the ready
    work in the order of their times. `TenantNotFound` for a tenant that is not there.

    Tenants with ready work take turns by weight; inside a tenant the order is strict. No more jobs run at once
    than the tenant's `max_running_jobs` and the definition's `max_running` and `max_running_per_key` say, whoever
    claims; work that has to wait for that is passed over. Types that are paused are not handed out.
    """

    worker_id: str
    types: Sequence[str]
    limit: int
    lease: int
    tenant: str | None = None
    host: str | None = None
    pid: int | None = None


class AttemptHeartbeat(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The worker lives: renew the lease of this attempt, and note how far it has come. Restricted as a `Settle` is."""

    job_id: str
    fence: int
    lease: int
    tenant: str | None = None
    worker: str | None = None
    percent: float | None = None
    stage: str | None = None


class RenewLeases(Command[list[Heartbeat | IngotError]], frozen=True, kw_only=True):
    """Renew each of these leases, and answer for each in order. One that fails stops no other.

    `JobNotFound` for a job that is not there or not in the tenant, `LeaseLost` unless the fence is the
    current one of a running job, and the attempt that of the worker when one is named. A lease that ran out
    but was not swept is renewed. A new progress is kept and told in an event, at most once a second per job.
    """

    beats: Sequence[AttemptHeartbeat]


class LogEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the attempt with this fence wrote. `offset` is how many characters it had sent before, when it knows."""

    job_id: str
    fence: int
    text: str
    offset: int | None = None
    tenant: str | None = None
    worker: str | None = None


class AppendLogs(Command[list[int | IngotError]], frozen=True, kw_only=True):
    """Append each of these texts to the log of its attempt, and answer for each in order where the log ends now.

    Errors as in `RenewLeases`, and then nothing is kept. Of a text whose `offset` lies before the end of the log only
    what is new is kept, so that a repeat adds nothing; one that lies behind it leaves a gap. Of each attempt the
    last `LOG_CHARS_KEPT` characters can be read, for as long as the job is there. No events are written.
    """

    entries: Sequence[LogEntry]


class SettleJobs(Command[list[Settled | IngotError]], frozen=True, kw_only=True):
    """Record how each of these attempts ended, and answer for each in order. One that fails stops no other.

    The job moves as `judge` says. Errors as in `RenewLeases`; but the same outcome sent again with the same
    fence gets its first answer again, for as long as the attempt's row lives. Another outcome: `LeaseLost`.
    """

    settles: Sequence[Settle]


class CancelJob(Command[Job], frozen=True, kw_only=True):
    """Cancel a waiting job at once; for a running one record that it should stop.

    Canceling again changes nothing. `JobFinished` when it succeeded or died before. A canceled job never
    becomes anything else by itself.
    """

    tenant: str
    job_id: str


class RetryJob(Command[Job], frozen=True, kw_only=True):
    """Put a finished job back in the queue, with an event that says so.

    What is `None` stays as it was; `run_at=None` is at once.

    `JobNotFinished` otherwise. `DuplicateJob` when its dedupe key is held by another unfinished job.
    With `reset_attempts` failures and crashes begin at zero again; `attempts` never does.
    """

    tenant: str
    job_id: str
    reset_attempts: bool = False
    priority: int | None = None
    max_attempts: int | None = None
    run_at: int | None = None


class ChangeJob(Command[Job], frozen=True, kw_only=True):
    """Change priority, time or attempts of a waiting job (`JobNotQueued` otherwise), or the tags of any.

    What is `None` stays as it was.
    """

    tenant: str
    job_id: str
    priority: int | None = None
    run_at: int | None = None
    max_attempts: int | None = None
    tags: Sequence[str] | None = None


class MaintainJobs(Command[MaintenanceResult], frozen=True, kw_only=True):
    """Promote work that has become due, and sweep leases that have run out, a bounded number of each.

    A swept job is judged as lost: back in the queue after 0 to 5 seconds, or dead at its crash cap, or
    canceled when that was asked for. Nothing is swept within one lease length of the store coming up.
    """


class CollectJobs(Command[JobCollectionResult], frozen=True, kw_only=True):
    """Remove up to `limit` finished jobs whose retention is over, of any tenant, of a type from the oldest on.

    One that ended before, and was retried, may go as early as if it had ended then, once its retention is over.

    How long a job is kept is what its definition says now, or else its tenant's limits, counted from the moment it
    finished last. A removed job is gone with its attempts and tags, its idempotency key is free, and it is counted
    no more; with `keep_history` one entry stays. A job that is not finished, or was retried meanwhile, is never
    touched. No events are written.
    """

    limit: int


class JobFilter(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Which jobs of a tenant to list; `None` is all. Made at `created_after` or later, and before `created_before`."""

    tenant: str
    status: JobStatus | None = None
    type: str | None = None
    tag: str | None = None
    source: Source | None = None
    created_after: int | None = None
    created_before: int | None = None


class ReadLog(Command[JobLog | None], frozen=True, kw_only=True):
    """What an attempt wrote from the character `after` on, up to the next gap, all as of one moment.

    Without an `attempt` it is the newest. Every job has an attempt 0, which never began. `None` when the job is not
    there or not in this tenant, or has had no such attempt.
    """

    tenant: str
    job_id: str
    attempt: int | None
    after: int


class PreviewRetention(Command[list[RetentionPreview]], frozen=True, kw_only=True):
    """What collections would remove of a tenant's jobs now, by type, counting a bounded number of each.

    `TenantNotFound` for a tenant that is not there.
    """

    tenant: str


class ListHistory(Command[tuple[list[HistoryEntry], str | None]], frozen=True, kw_only=True):
    """Entries after the position `before`, last finished first, and the position to go on from (`None`: no more).

    `TenantNotFound` for a tenant that is not there.
    """

    tenant: str
    type: str | None
    before: str | None
    limit: int


class ListLeases(Command[list[tuple[str, int]]], frozen=True, kw_only=True):
    """Up to `limit` running jobs, each with its fence, of a worker or of any instance of a credential.

    They are those of one tenant, or of all for `None`.
    """

    worker: str
    tenant: str | None
    limit: int


class GetJob(Command[Job | None], frozen=True, kw_only=True):
    """The job, or `None` when it is not there or not in this tenant."""

    tenant: str
    job_id: str


class ListJobs(Command[tuple[list[Job], str | None]], frozen=True, kw_only=True):
    """Jobs after the position `before`, newest first, and the position to go on from (`None`: no more).

    Every listed job fits the filter, as it is listed. Looks at a bounded number of rows, so a page may be short,
    or empty, although there are more. `TenantNotFound` for a tenant that is not there.

    From the first page to the last no job is listed twice, and every job is listed that was there before the first
    page was read and fits the filter all the while. Jobs that come meanwhile, or that begin or cease to fit, may be
    listed or not. A job keeps its place for good: the order is that in which jobs were accepted, or that of their
    ids, which new ones made by one process continue.
    """

    where: JobFilter
    before: str | None
    limit: int


class ListAttempts(Command[list[Attempt]], frozen=True, kw_only=True):
    """The attempts of a job, oldest first; none when the job is not there or not in this tenant."""

    tenant: str
    job_id: str


class SummarizeJobs(Command[Summary], frozen=True, kw_only=True):
    """Exact counts of a tenant's jobs by status, and the age of the work that has been ready longest.

    With a `type`, of the jobs of that type. `TenantNotFound` for a tenant that is not there.
    """

    tenant: str
    type: str | None = None


class CountMatchingJobs(Command[tuple[dict[JobStatus, int], bool]], frozen=True, kw_only=True):
    """How many jobs fit a filter, by status, and whether there may be more, for only so many rows are looked at.

    States without jobs are left out. `TenantNotFound` for a tenant that is not there.
    """

    where: JobFilter


class GetWaitState(Command[WaitState | None], frozen=True, kw_only=True):
    """What keeps a job from running, or `None` when it is not there or not in this tenant. Bounded in cost."""

    tenant: str
    job_id: str


class GetBatch(Command[Batch | None], frozen=True, kw_only=True):
    """The jobs of a batch in numbers, or `None` when the tenant has none of that name.

    Whenever the last unfinished job of a batch ends, an event `batch.completed` tells these numbers.
    """

    tenant: str
    batch: str


class CountJobs(Command[dict[str, dict[JobStatus, int]]], frozen=True, kw_only=True):
    """Exact counts of a tenant's jobs by type, in order, and by status. Types and states without jobs are left out.

    `TenantNotFound` for a tenant that is not there.
    """

    tenant: str


class ListQueueDepths(Command[list[Depth]], frozen=True, kw_only=True):
    """The jobs of every tenant by status, exact, those of the oldest `tenants_max` tenants each by itself.

    What has been ready longest is looked for in so many lanes, of every tenant and type in turn.
    """

    tenants_max: int
    lanes_max: int


class JobStore(RecordStore, Protocol):
    """An engine that keeps jobs, and tells what happens to them."""

    def measure_load(self) -> Awaitable[Load]:
        """How much there is to do at this moment."""

    def add_listener(self, listener: Listener) -> None:
        """Tell this how attempts end, what is canceled and what is committed together, each once."""

    def coalesce_commands(self) -> None:
        """Many callers ask at once from now on: what comes together had better be done together."""

    def on_ready(self, tell: Callable[[str, str, int], object]) -> None:
        """Call `tell(tenant, type, count)` on the event loop after jobs became ready. Only a hint."""

    def on_upcoming_jobs(self, wake: Callable[[str, str, int], int]) -> None:
        """Let the engine call `wake(tenant, type, count)` for jobs that it is about to make ready.

        It wakes up to `count` claims that wait for such jobs, and answers how many. Those that find nothing wait on.
        """

    def on_maintenance_rescheduled(self, tell: Callable[[], None]) -> None:
        """Call `tell()` on the event loop after the next instant on the agenda came closer. Only a hint."""

    def seconds_to_maintenance(self) -> float | None:
        """How long until work becomes due or a lease runs out; `None` when nothing is known. Costs no query."""


class RegisterWorker(Command[RegisteredWorker], frozen=True, kw_only=True):
    """Keep a worker, or what it says of itself now. It is online after that, and drains no more.

    `tenant=None` is one that serves every tenant.

    An event tells of one that was not there, or offline. `TenantNotFound` for a tenant that is not there.
    """

    tenant: str | None
    worker_id: str
    types: Sequence[str]
    hostname: str | None = None
    version: str | None = None
    metadata: bytes | None = None
    by: str | None = None


class WorkerHeartbeat(Command[HeartbeatAnswer], frozen=True, kw_only=True):
    """A worker lives, and is at work on these jobs, each named once, and on no others.

    What it has held for longer than `grace` and does not name it knows nothing of. That it was seen is written down
    when the last time is `note_after` ago.

    Renew the leases that a worker names, each judged as in `RenewLeases`, and give back those it does not.

    These are the leases of this very id, of its tenant or, of a shared worker, of all tenants, that were claimed
    longer than `grace` ago. They are released as in `SettleJobs`, which counts against nothing. A worker
    that was offline is online again, with an event. `WorkerNotFound`, and then nothing is done.
    """

    tenant: str | None
    worker_id: str
    beats: Sequence[AttemptHeartbeat]
    grace: int
    record_seen_after: int


class DrainWorker(Command[RegisteredWorker], frozen=True, kw_only=True):
    """Have a worker take no more work; again changes nothing. `WorkerNotFound`.

    Without an act the worker says so of itself, and nothing is put on record.
    """

    tenant: str | None
    worker_id: str
    act: Act | None


class RemoveWorker(Command[bool], frozen=True, kw_only=True):
    """A worker is gone, and comes not back. Up to `limit` jobs that it holds are given back.

    Without an act it says so of itself, and nothing is put on record.

    Give back what a worker holds and forget it, with an event when it was not offline. `WorkerNotFound`.

    `False` when it holds more than the limit: then it is still there, and to be removed again.
    """

    tenant: str | None
    worker_id: str
    limit: int
    act: Act | None


class MaintainWorkers(Command[WorkerMaintenanceResult], frozen=True, kw_only=True):
    """Take workers that were silent for `silent_after` for offline, each with an event; up to `limit` of them.

    As many that were offline for `forget_after` are forgotten.

    None is taken for offline within one lease length of the store coming up.
    """

    offline_after: int
    remove_after: int
    limit: int


class GetWorker(Command[RegisteredWorker | None], frozen=True, kw_only=True):
    """The worker, or `None`."""

    tenant: str | None
    worker_id: str


class ListWorkers(Command[list[RegisteredWorker]], frozen=True, kw_only=True):
    """Workers of a tenant, or the shared ones for `None`, by id, from behind `after`.

    `TenantNotFound` for a tenant that is not there.
    """

    tenant: str | None
    after: str | None
    limit: int


class ListDrainingWorkers(Command[list[WorkerKey]], frozen=True, kw_only=True):
    """All workers, of all tenants, that are to take no more work and are not offline."""


class CheckLeases(Command[list[LeaseStatus]], frozen=True, kw_only=True):
    """How these leases stand now, one answer for each in order. Renews nothing. One look for all of them."""

    leases: Sequence[LeaseStatus]


class WorkerStore(Store, Protocol):
    """An engine that keeps workers, by tenant and id."""

    is_exclusive: bool  # Whether nobody else writes to it, so that a process knows all by itself.
