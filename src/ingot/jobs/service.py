"""The service for jobs. It validates arguments, turns each call into a command, and runs the command in the store."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final, TypeVar, Unpack

import structlog

from ingot.blobs.model import Content
from ingot.events.audit import Act
from ingot.jobs import checks
from ingot.jobs.attempt_checks import checked_heartbeat, checked_log_entry, checked_settle
from ingot.jobs.attempt_logs import JobFollowers
from ingot.jobs.claim_waiters import ClaimWaiter, ClaimWaiters
from ingot.jobs.definitions import ensured_definition
from ingot.jobs.files import FindRunningJob, JobFile, JobFileKind, OpenJobFile, RunningJob
from ingot.jobs.job_options import JobOptions, done_outcome, new_job
from ingot.jobs.metrics import Listener
from ingot.jobs.model import (
    Claim,
    Definition,
    Enqueued,
    Failed,
    Heartbeat,
    Job,
    JobCollectionResult,
    LostLease,
    MaintenanceResult,
    NewJob,
    Outcome,
    Pause,
    Progress,
    Release,
    Settle,
    Settled,
    Snooze,
)
from ingot.jobs.new_job_checks import checked_new_jobs
from ingot.jobs.ports import (
    AppendLogs,
    AttemptHeartbeat,
    CancelJob,
    ChangeJob,
    ClaimJobs,
    CollectJobs,
    Enqueue,
    JobStore,
    ListLeases,
    LogEntry,
    MaintainJobs,
    RenewLeases,
    RetryJob,
    SettleJobs,
)
from ingot.jobs.queries import JobQueries
from ingot.jobs.record_kinds import DEFINITION_KIND, PAUSE_KIND, PauseBody, pause_from_record
from ingot.jobs.worker_model import WorkerKey
from ingot.kernel import validation
from ingot.kernel.clock import MICROS
from ingot.kernel.commands import Command
from ingot.kernel.errors import IngotError, InvalidInput, StoreBusy
from ingot.kernel.logs import report
from ingot.kernel.slices import SLICE_SECONDS, next_slice
from ingot.kernel.waits import wait_until
from ingot.records.model import RecordChanged, RecordNotFound
from ingot.records.service import Records

LOST_JOBS_SHOWN_MAX: Final = 10
CONFLICTS_MAX: Final = 50  # Number of tries to change a record that others change concurrently.

log = structlog.get_logger("ingot.jobs")

T = TypeVar("T")
ResultT = TypeVar("ResultT")
ItemT = TypeVar("ItemT", AttemptHeartbeat, LogEntry, Settle)


class Jobs(JobQueries):
    """Durable jobs. When a call returns, its changes are committed and synced.

    A call that raises has changed nothing, unless it raises `OutcomeUnknown`. A call that is canceled may or may not
    take effect.
    """

    def __init__(self, store: JobStore, *, lease_seconds: float) -> None:
        super().__init__(store, lease_seconds=lease_seconds)
        self._lease_micros = round(lease_seconds * MICROS)
        self._waiters = ClaimWaiters()
        self.log_followers = JobFollowers()
        self._release_tasks: set[asyncio.Task[None]] = set()
        self.draining_workers: frozenset[WorkerKey] = frozenset()  # Workers that get no more jobs.
        self.cancel_listeners: list[Callable[[Job], None]] = []  # Called with running jobs that have to stop.
        self._listeners: list[Listener] = []
        self._definitions = Records(store, DEFINITION_KIND)
        self._pauses = Records(store, PAUSE_KIND)
        store.on_ready(self._waiters.wake)
        store.on_upcoming_jobs(self._waiters.wake_early)
        store.on_leases_lost(_log_lost_leases)
        store.on_schema_mismatch(self._wake_all)

    @property
    def waiting_claims(self) -> int:
        """The number of claims that were called with a wait and have not returned."""
        return len(self._waiters)

    async def close(self) -> None:
        """End waiting claims, and release the jobs of canceled claims. The store stays open."""
        self.stop_waiting()
        while self._release_tasks:
            await asyncio.wait(self._release_tasks)

    def coalesce_commands(self) -> None:
        """Gather concurrent commands into batches from now on. A server calls this, because it has many callers."""
        self._store.coalesce_commands()

    def stop_waiting(self) -> None:
        """End all waiting calls, and let later calls return without waiting."""
        self._closing = True
        self._wake_all()

    def _wake_all(self) -> None:
        """Let all waiting calls query the store again, and so end if it reports an error."""
        self._waiters.wake_all()
        self.job_followers.wake_all()

    def end_tenant_waits(self, tenant: str) -> None:
        """Wake the waiting claims of a removed tenant, so that they fail at once."""
        self._waiters.wake_tenant(tenant)

    def set_draining_workers(self, workers: Iterable[WorkerKey]) -> None:
        """Replace the set of workers that get no more jobs. Their waiting claims return empty now."""
        previous, self.draining_workers = self.draining_workers, frozenset(workers)
        self._waiters.wake_workers(self.draining_workers - previous)

    def listen(self, listener: Listener) -> None:
        """Report to this listener what happens to jobs from now on."""
        self._listeners.append(listener)
        self._store.add_listener(listener)

    # -- enqueueing -----------------------------------------------------------------------------------------

    async def enqueue(self, tenant: str, type: str, payload: object = None, **options: Unpack[JobOptions]) -> Enqueued:
        """Accept one job. `payload` and `metadata` are JSON values, or `bytes` of JSON text kept as received.

        Raises `InvalidInput`, `PayloadTooLarge`, `TenantNotFound`, `ParentNotFound`, `IdempotencyMismatch`,
        `DuplicateJob`, `JobLimitExceeded`, `TypeLimitExceeded`, `RateLimited`, `BlobNotFound` or `QuotaExceeded`.
        """
        job = new_job(tenant, type, payload, **options)
        (enqueued,) = await self._enqueue((job,))
        return enqueued

    async def enqueue_many(self, orders: Iterable[NewJob]) -> list[Enqueued]:
        """Accept many jobs created with `new_job`, all or none. Raises as `enqueue` does."""
        new_jobs = await checked_new_jobs(orders)
        return await self._enqueue(new_jobs) if new_jobs else []

    async def _enqueue(self, new_jobs: Sequence[NewJob]) -> list[Enqueued]:
        results = await self._store.run(Enqueue(jobs=new_jobs))
        for listener in self._listeners:
            _notify(listener.enqueued, results)
        return results

    # -- claiming and settling ------------------------------------------------------------------------------

    async def claim(
        self,
        worker_id: str,
        types: Sequence[str],
        *,
        limit: int = 1,
        wait_seconds: float = 0,
        tenant: str | None = None,
        host: str | None = None,
        pid: int | None = None,
    ) -> list[Claim]:
        """Lease up to `limit` due jobs of these types. If none is due, wait up to `wait_seconds` for jobs.

        `tenant=None` claims jobs of all tenants. The result is empty only after the whole wait, while the service is
        closing, or at once if the worker is draining.
        """
        validation.check_seconds(wait_seconds, name="wait_seconds", maximum=checks.WAIT_SECONDS_MAX)
        command = ClaimJobs(
            worker_id=checks.worker_id(worker_id),
            types=checks.claim_types(types),
            limit=validation.check_integer(limit, name="limit", minimum=1, maximum=checks.CLAIM_JOBS_MAX),
            lease=self._lease_micros,
            tenant=checks.optional_tenant_id(tenant),
            host=checks.short_text(host, name="host"),
            pid=None
            if pid is None
            else validation.check_integer(pid, name="pid", minimum=0, maximum=validation.NUMBER_MAX),
        )
        worker_key = tenant, command.worker_id
        claims: list[Claim] = []
        if wait_seconds == 0:
            return claims if worker_key in self.draining_workers else await self._claim_once(command)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        waiter = self._waiters.add(command.types, tenant, command.worker_id)
        try:
            while worker_key not in self.draining_workers and not (claims := await self._try_claim(command, waiter)):
                if loop.time() >= deadline or self._closing:
                    break
                await wait_until(waiter.woken, deadline)
            return claims
        finally:
            self._waiters.remove(waiter)

    async def _try_claim(self, command: ClaimJobs, waiter: ClaimWaiter) -> list[Claim]:
        """Claim once. If the claim failed or got other jobs than those it was woken for, wake another claim."""
        hint, waiter.pending_hint = waiter.pending_hint, None
        waiter.woken.clear()
        is_hint_used = False
        try:
            claims = await self._claim_once(command)
            is_hint_used = not claims or any((claim.job.tenant, claim.job.type) == hint for claim in claims)
            return claims
        finally:
            if hint is not None and not is_hint_used:
                self._waiters.wake(*hint, 1)

    async def _claim_once(self, command: ClaimJobs) -> list[Claim]:
        """Claim without waiting. If the caller is canceled, release the claimed jobs in the background."""
        claiming = asyncio.ensure_future(self._store.run(command))
        try:
            claims = await asyncio.shield(claiming)
        except asyncio.CancelledError:
            release_task = asyncio.create_task(self._release_claims(claiming))
            self._release_tasks.add(release_task)
            release_task.add_done_callback(self._release_tasks.discard)
            raise
        if claims:
            for listener in self._listeners:
                _notify(listener.claimed, claims)
        return claims

    async def _release_claims(self, claiming: asyncio.Future[list[Claim]]) -> None:
        with suppress(IngotError):  # Jobs that cannot be released are swept when their leases expire.
            if claims := await claiming:
                settles = [Settle(job_id=claim.job.id, fence=claim.fence, outcome=Release()) for claim in claims]
                await self._store.run(SettleJobs(settles=settles))

    async def heartbeat(
        self,
        job_id: str,
        fence: int,
        *,
        progress: Progress | None = None,
        tenant: str | None = None,
        worker: str | None = None,
    ) -> Heartbeat:
        """Renew the lease of an attempt and store its progress. Raises `LeaseLost`, `JobNotFound` or `InvalidInput`."""
        beat = self.beat(job_id, fence, progress=progress, tenant=tenant, worker=worker)
        (result,) = await self.heartbeat_many([beat])
        return _value_or_raise(result)

    def beat(
        self,
        job_id: str,
        fence: int,
        *,
        progress: Progress | None = None,
        tenant: str | None = None,
        worker: str | None = None,
    ) -> AttemptHeartbeat:
        """Create an entry for `heartbeat_many`."""
        progress = checks.progress(progress)
        return AttemptHeartbeat(
            job_id=job_id,
            fence=fence,
            lease=self._lease_micros,
            tenant=tenant,
            worker=worker,
            percent=None if progress is None else progress.percent,
            stage=None if progress is None else progress.stage,
        )

    async def heartbeat_many(self, beats: Iterable[AttemptHeartbeat]) -> list[Heartbeat | IngotError]:
        """Renew many leases. Returns one result or error for each, in order; an error does not affect the others."""
        _, results = await self._run_each("beats", beats, checked_heartbeat, RenewLeases)
        return results

    async def append_log(
        self,
        job_id: str,
        fence: int,
        text: str,
        *,
        offset: int | None = None,
        tenant: str | None = None,
        worker: str | None = None,
    ) -> int:
        """Append text to the log of an attempt, and return the total number of characters of the log.

        `offset` is the number of characters sent before. With it, a repeated call adds nothing. Raises `LeaseLost`,
        `JobNotFound` or `InvalidInput`.
        """
        entry = LogEntry(job_id=job_id, fence=fence, text=text, offset=offset, tenant=tenant, worker=worker)
        (result,) = await self.append_logs([entry])
        return _value_or_raise(result)

    async def append_logs(self, entries: Iterable[LogEntry]) -> list[int | IngotError]:
        """Append to the logs of many attempts. Returns one result or error for each, as `heartbeat_many` does."""
        valid_entries, results = await self._run_each("entries", entries, checked_log_entry, AppendLogs)
        for entry in valid_entries:
            self.log_followers.wake(entry.job_id)
        return results

    async def settle(
        self, job_id: str, fence: int, outcome: Outcome, *, tenant: str | None = None, worker: str | None = None
    ) -> Settled:
        """Record how an attempt ended. Raises `LeaseLost`, `JobNotFound`, `OutputMissing` or `InvalidInput`."""
        settle = Settle(job_id=job_id, fence=fence, outcome=outcome, tenant=tenant, worker=worker)
        (result,) = await self.settle_many([settle])
        return _value_or_raise(result)

    async def settle_many(self, settles: Iterable[Settle]) -> list[Settled | IngotError]:
        """Record the outcomes of many attempts. Returns one result or error for each, as `heartbeat_many` does."""
        valid_settles, results = await self._run_each("settles", settles, checked_settle, SettleJobs)
        if results:
            for listener in self._listeners:
                _notify(listener.settled, results)
        for settle in valid_settles:
            self.job_followers.wake(settle.job_id)
        return results

    async def _run_each(
        self,
        name: str,
        items: Iterable[ItemT],
        check: Callable[[object], ItemT],
        command: Callable[..., Command[list[ResultT | IngotError]]],
    ) -> tuple[list[ItemT], list[ResultT | IngotError]]:
        """Run one command with the items that are valid, in its field `name`.

        Returns the valid items, and for each item, in order, the result of the command or the error of its check.
        """
        given_items = validation.check_list(items, name=name)
        if given_items:
            validation.check_integer(
                len(given_items), name=f"the number of {name}", minimum=1, maximum=checks.BATCH_JOBS_MAX
            )
        items_or_errors: list[ItemT | IngotError] = []
        slice_end = time.perf_counter() + SLICE_SECONDS
        for item in given_items:
            if time.perf_counter() >= slice_end:
                await next_slice()
                slice_end = time.perf_counter() + SLICE_SECONDS
            try:
                items_or_errors.append(check(item))
            except IngotError as error:
                items_or_errors.append(error)
        valid_items = [item for item in items_or_errors if not isinstance(item, IngotError)]
        results = iter(await self._store.run(command(**{name: valid_items})) if valid_items else ())
        return valid_items, [next(results) if not isinstance(item, IngotError) else item for item in items_or_errors]

    async def complete(self, claim: Claim, result: object = None, *, outputs: Iterable[str] = ()) -> Settled:
        """Settle an attempt as succeeded. `result` is a JSON value, or `bytes` of JSON text.

        Raises `OutputMissing` if one of the `outputs` was not uploaded for this attempt.
        """
        claim = checks.claim(claim)
        return await self.settle(claim.job.id, claim.fence, done_outcome(result, outputs))

    async def fail(
        self,
        claim: Claim,
        error: str | BaseException,
        *,
        retry: bool = True,
        exit_code: int | None = None,
        timed_out: bool = False,
    ) -> Settled:
        """Settle an attempt as failed. The job is retried unless `retry` is false or its attempts are used up."""
        claim = checks.claim(claim)
        outcome = Failed(error=checks.error_text(error), retry=retry, exit_code=exit_code, timed_out=timed_out)
        return await self.settle(claim.job.id, claim.fence, outcome)

    async def snooze(self, claim: Claim, delay: timedelta | float) -> Settled:
        """End an attempt, and run the job again after the delay. Counts against nothing."""
        claim = checks.claim(claim)
        return await self.settle(claim.job.id, claim.fence, Snooze(delay=checks.delay(delay)))

    async def release(self, claim: Claim) -> Settled:
        """Release an unfinished job to the queue. Counts against nothing."""
        claim = checks.claim(claim)
        return await self.settle(claim.job.id, claim.fence, Release())

    async def give_back(self, worker: str, *, tenant: str | None = None) -> int:
        """Release all running jobs of a worker, or of all instances of a worker credential, and return their number.

        `tenant=None` releases jobs of all tenants. Counts against nothing. This is for workers whose credential was
        replaced or disabled: afterwards they can no longer change these jobs.
        """
        checks.worker_id(worker)
        checks.optional_tenant_id(tenant)
        released = 0
        while leases := await self._store.run(ListLeases(worker=worker, tenant=tenant, limit=checks.BATCH_JOBS_MAX)):
            settles = [Settle(job_id=job_id, fence=fence, outcome=Release()) for job_id, fence in leases]
            results = await self._store.run(SettleJobs(settles=settles))
            released += sum(isinstance(result, Settled) for result in results)
        return released

    # -- files of running jobs ------------------------------------------------------------------------------

    async def get_running_job(
        self, job_id: str, fence: int, *, tenant: str | None = None, worker: str | None = None
    ) -> RunningJob:
        """Return the job that is running under this fence. Raises `JobNotFound` or `LeaseLost`."""
        checks.job_id(job_id)
        return await self._store.run(
            FindRunningJob(job_id=job_id, fence=checks.fence(fence), tenant=tenant, worker=worker)
        )

    async def open_file(
        self,
        job_id: str,
        fence: int,
        kind: JobFileKind,
        name: str,
        *,
        tenant: str | None = None,
        worker: str | None = None,
    ) -> tuple[JobFile, Content]:
        """Return an input, the payload or a checkpoint of the job that is running under this fence.

        Raises `JobNotFound`, `LeaseLost` or `FileNotFound`.
        """
        checks.job_id(job_id)
        return await self._store.run(
            OpenJobFile(job_id=job_id, fence=checks.fence(fence), kind=kind, name=name, tenant=tenant, worker=worker)
        )

    # -- canceling, retrying and rescheduling ---------------------------------------------------------------

    async def cancel(self, tenant: str, job_id: str, *, by: str | None = None) -> Job:
        """Cancel a waiting job at once, or request a running job to stop. Raises `JobNotFound` or `JobFinished`.

        `by` names the caller for explanations.
        """
        job = await self._store.run(
            CancelJob(
                tenant=checks.tenant_id(tenant), job_id=checks.job_id(job_id), by=checks.short_text(by, name="by")
            )
        )
        if job.cancel_requested:
            for listener in self.cancel_listeners:
                listener(job)
        self.job_followers.wake(job.id)
        return job

    async def retry(
        self,
        tenant: str,
        job_id: str,
        *,
        reset_attempts: bool = False,
        priority: int | None = None,
        max_attempts: int | None = None,
        run_at: datetime | None = None,
    ) -> Job:
        """Run a finished job again.

        Raises `JobNotFound`, `JobNotFinished`, `DuplicateJob`, `JobLimitExceeded` or `RateLimited`.
        """
        return await self._store.run(
            RetryJob(
                tenant=checks.tenant_id(tenant),
                job_id=checks.job_id(job_id),
                reset_attempts=validation.check_boolean(reset_attempts, name="reset_attempts"),
                priority=checks.priority(priority),
                max_attempts=checks.max_attempts(max_attempts),
                run_at=checks.timestamp(run_at),
            )
        )

    async def reschedule(
        self,
        tenant: str,
        job_id: str,
        *,
        priority: int | None = None,
        run_at: datetime | None = None,
        max_attempts: int | None = None,
        tags: Iterable[str] | None = None,
    ) -> Job:
        """Change a waiting job, or the tags of any job. Raises `JobNotFound` or `JobNotQueued`."""
        return await self._store.run(
            ChangeJob(
                tenant=checks.tenant_id(tenant),
                job_id=checks.job_id(job_id),
                priority=checks.priority(priority),
                run_at=checks.timestamp(run_at),
                max_attempts=checks.max_attempts(max_attempts),
                tags=None if tags is None else checks.tags(tags),
            )
        )

    async def maintain(self) -> MaintenanceResult:
        """Promote due jobs and sweep expired leases now. The maintenance loop does this automatically."""
        return await self._store.run(MaintainJobs())

    async def collect(self, limit: int = 1000) -> JobCollectionResult:
        """Remove finished jobs whose retention has passed now. The retention loop does this automatically."""
        limit = validation.check_integer(limit, name="limit", minimum=1, maximum=checks.COLLECT_JOBS_MAX)
        return await self._store.run(CollectJobs(limit=limit))

    # -- pausing ----------------------------------------------------------------------------------------

    async def pause(self, tenant: str, type: str, *, by: str | None = None, act: Act | None = None) -> Pause:
        """Hand out no more jobs of this type. Running jobs continue, and new jobs are accepted.

        Pausing again changes nothing.
        """
        body = PauseBody(by=checks.short_text(by, name="by"))
        for _ in range(CONFLICTS_MAX):
            try:
                record = await self._pauses.put(checks.tenant_id(tenant), type, body, if_version=0, act=act)
            except RecordChanged:
                with suppress(RecordNotFound):  # The type was resumed in the meantime, so try again.
                    return pause_from_record(await self._pauses.get(tenant, type))
            else:
                return pause_from_record(record)
        raise StoreBusy

    async def resume(self, tenant: str, type: str, *, act: Act | None = None) -> None:
        """Hand out jobs of this type again. Resuming again changes nothing."""
        with suppress(RecordNotFound):
            await self._pauses.delete(checks.tenant_id(tenant), type, act=act)

    async def pauses(self, tenant: str) -> Sequence[Pause]:
        """Return the pauses of a tenant, ordered by type."""
        return [pause_from_record(record) for record in await self._pauses.all(checks.tenant_id(tenant))]

    # -- definitions ----------------------------------------------------------------------------------------

    async def define(self, definition: Definition, *, act: Act | None = None) -> Definition:
        """Create or replace the definition of a type, for one tenant or for all tenants."""
        definition = checks.definition(definition)
        return (await self._definitions.put(definition.tenant, definition.type, definition, act=act)).body

    async def ensure_definition(self, definition: Definition, *, act: Act | None = None) -> Definition:
        """Ensure that a type has a definition for all tenants, and return the definition.

        If there is none, this one is created. An existing definition is kept, except that a version lower than this one
        is raised. Concurrent changes by others are kept.
        """
        required = checks.definition(definition)
        if required.tenant is not None:
            raise InvalidInput("ensure_definition only accepts definitions for all tenants", hint="Leave tenant unset.")
        for _ in range(CONFLICTS_MAX):
            version, existing = 0, None
            with suppress(RecordNotFound):
                record = await self._definitions.get(None, required.type)
                version, existing = record.version, record.body
            if (ensured := ensured_definition(existing, required)) == existing:
                return ensured
            with suppress(RecordChanged):
                return (await self._definitions.put(None, required.type, ensured, if_version=version, act=act)).body
        raise StoreBusy

    async def definition(self, type: str, *, tenant: str | None = None) -> Definition:
        """Return the definition that applies to a type: the tenant's own, the one for all tenants, or the defaults."""
        for owner in dict.fromkeys((checks.optional_tenant_id(tenant), None)):
            with suppress(RecordNotFound):
                return (await self._definitions.get(owner, type)).body
        return Definition(type=type)

    async def definitions(self, *, tenant: str | None = None) -> Sequence[Definition]:
        """Return the stored definitions that a tenant can see, ordered by type."""
        own_records = [] if tenant is None else await self._definitions.all(checks.tenant_id(tenant))
        definitions = [record.body for record in (*await self._definitions.all(None), *own_records)]
        return sorted(definitions, key=lambda definition: definition.type)


def _log_lost_leases(leases: Sequence[LostLease]) -> None:
    """Log the jobs that each worker lost, because it is the only trace of a worker that was killed."""
    jobs: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for lease in leases:
        jobs[lease.worker_id, lease.tenant].append(lease.job_id)
    for (worker_id, tenant), job_ids in jobs.items():
        shown = job_ids[:LOST_JOBS_SHOWN_MAX]
        log.warning("leases_lost", worker_id=worker_id, tenant_id=tenant, jobs=len(job_ids), job_ids=shown)
    for lease in leases:
        if lease.is_dead:
            log.error(
                "job_dead",
                text="job dead: each of its workers was lost while it ran the job, as often as the job allows",
                job_id=lease.job_id,
                job_type=lease.type,
                tenant_id=lease.tenant,
                worker_id=lease.worker_id,
                outcome="lost",
            )


def _notify(callback: Callable[[T], None], value: T) -> None:
    try:
        callback(value)
    except Exception as error:  # The change is already durable, so a failing listener must not fail the call.
        report("listener_failed", error)


def _value_or_raise(result: T | IngotError) -> T:
    if isinstance(result, IngotError):
        raise result
    return result
