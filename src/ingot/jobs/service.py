"""The jobs room's front: checks what comes in, makes one command of it, and hands it to the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final, TypeVar, Unpack

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
from ingot.kernel.waits import wait_until
from ingot.records.model import RecordChanged, RecordNotFound
from ingot.records.service import Records

CONFLICTS_MAX: Final = 50  # How often others may change a record first before we give up.

T = TypeVar("T")
A = TypeVar("A")
C = TypeVar("C", AttemptHeartbeat, LogEntry, Settle)


class Jobs(JobQueries):
    """Durable jobs: every call that returns has been committed and synced.

    A call that raises has changed nothing, except `OutcomeUnknown`; a call that is canceled may have been done.
    """

    def __init__(self, store: JobStore, *, lease_seconds: float) -> None:
        super().__init__(store)
        self._lease_micros = round(lease_seconds * MICROS)
        self._waiters = ClaimWaiters()
        self.log_followers = JobFollowers()
        self._release_tasks: set[asyncio.Task[None]] = set()
        self.draining_workers: frozenset[WorkerKey] = frozenset()  # The workers that get no more work.
        self.cancel_listeners: list[Callable[[Job], None]] = []  # Who is told of running jobs that are to stop.
        self._listeners: list[Listener] = []
        self._definitions = Records(store, DEFINITION_KIND)
        self._pauses = Records(store, PAUSE_KIND)
        store.on_ready(self._waiters.wake)
        store.on_upcoming_jobs(self._waiters.wake_early)

    @property
    def waiting_claims(self) -> int:
        """How many claims are under way with a wait, or wait."""
        return len(self._waiters)

    async def close(self) -> None:
        """End waiting claims, and give back the jobs of claims whose callers went away. The store stays open."""
        self.stop_waiting()
        while self._release_tasks:
            await asyncio.wait(self._release_tasks)

    def coalesce_commands(self) -> None:
        """Many callers ask at once from now on, as those of a server do."""
        self._store.coalesce_commands()

    def stop_waiting(self) -> None:
        """End waiting claims, and let no others wait."""
        self._closing = True
        self._waiters.wake_all()
        self.job_followers.wake_all()

    def end_tenant_waits(self, tenant: str) -> None:
        """The tenant was removed: claims that wait for its work find that out now."""
        self._waiters.wake_tenant(tenant)

    def set_draining_workers(self, workers: Iterable[WorkerKey]) -> None:
        """Give these workers no more work, and no others: what they wait for is answered empty now."""
        before, self.draining_workers = self.draining_workers, frozenset(workers)
        self._waiters.wake_workers(self.draining_workers - before)

    def listen(self, listener: Listener) -> None:
        """Tell this what happens to jobs from now on."""
        self._listeners.append(listener)
        self._store.add_listener(listener)

    # -- asking for work ------------------------------------------------------------------------------------

    async def enqueue(self, tenant: str, type: str, payload: object = None, **options: Unpack[JobOptions]) -> Enqueued:
        """Accept one job. `payload` and `metadata` are JSON values, or `bytes` of JSON text kept as received.

        Raises `InvalidInput`, `PayloadTooLarge`, `TenantNotFound`, `ParentNotFound`, `IdempotencyMismatch`,
        `DuplicateJob`, `JobLimitExceeded`, `RateLimited`, `BlobNotFound` or `QuotaExceeded`.
        """
        order = new_job(tenant, type, payload, **options)
        (enqueued,) = await self._enqueue((order,))
        return enqueued

    async def enqueue_many(self, orders: Iterable[NewJob]) -> list[Enqueued]:
        """Accept many jobs made with `new_job`, all or none. Raises as `enqueue` does."""
        checked = checked_new_jobs(orders)
        return await self._enqueue(checked) if checked else []

    async def _enqueue(self, orders: Sequence[NewJob]) -> list[Enqueued]:
        made = await self._store.run(Enqueue(jobs=orders))
        for listener in self._listeners:
            _notify(listener.enqueued, made)
        return made

    # -- doing work -----------------------------------------------------------------------------------------

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
        """Lease up to `limit` due jobs of these types; with none due, wait up to `wait_seconds` for some.

        `tenant=None` serves all tenants. The answer is empty only after the whole wait, when we are closing, or at once
        when the worker is draining.
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
        key = tenant, command.worker_id
        claims: list[Claim] = []
        if wait_seconds == 0:
            return claims if key in self.draining_workers else await self._claim_once(command)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        waiter = self._waiters.add(command.types, tenant, command.worker_id)
        try:
            while key not in self.draining_workers and not (claims := await self._try_claim(command, waiter)):
                if loop.time() >= deadline or self._closing:
                    break
                await wait_until(waiter.woken, deadline)
            return claims
        finally:
            self._waiters.remove(waiter)

    async def _try_claim(self, command: ClaimJobs, waiter: ClaimWaiter) -> list[Claim]:
        """Look for work. News that this look did not use, because it found other work or failed, goes to others."""
        news, waiter.pending_hint = waiter.pending_hint, None
        waiter.woken.clear()
        used = False
        try:
            claims = await self._claim_once(command)
            used = not claims or any((claim.job.tenant, claim.job.type) == news for claim in claims)
            return claims
        finally:
            if news is not None and not used:
                self._waiters.wake(*news, 1)

    async def _claim_once(self, command: ClaimJobs) -> list[Claim]:
        """Claim; and when the caller goes away meanwhile, give back what nobody will work on."""
        answer = asyncio.ensure_future(self._store.run(command))
        try:
            claims = await asyncio.shield(answer)
        except asyncio.CancelledError:
            giving_back = asyncio.create_task(self._release_claims(answer))
            self._release_tasks.add(giving_back)
            giving_back.add_done_callback(self._release_tasks.discard)
            raise
        if claims:
            for listener in self._listeners:
                _notify(listener.claimed, claims)
        return claims

    async def _release_claims(self, answer: asyncio.Future[list[Claim]]) -> None:
        with suppress(IngotError):  # What a failing store keeps is swept when its lease runs out.
            if claims := await answer:
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
        """Renew the lease and note progress. Raises `LeaseLost`, `JobNotFound` or `InvalidInput`."""
        beat = self.beat(job_id, fence, progress=progress, tenant=tenant, worker=worker)
        (answer,) = await self.heartbeat_many([beat])
        return _value_or_raise(answer)

    def beat(
        self,
        job_id: str,
        fence: int,
        *,
        progress: Progress | None = None,
        tenant: str | None = None,
        worker: str | None = None,
    ) -> AttemptHeartbeat:
        """One entry of `heartbeat_many`."""
        known = checks.progress(progress)
        return AttemptHeartbeat(
            job_id=job_id,
            fence=fence,
            lease=self._lease_micros,
            tenant=tenant,
            worker=worker,
            percent=None if known is None else known.percent,
            stage=None if known is None else known.stage,
        )

    async def heartbeat_many(self, beats: Iterable[AttemptHeartbeat]) -> list[Heartbeat | IngotError]:
        """Renew many leases; each has its own answer, a heartbeat or the error it met."""
        _, answers = await self._run_each("beats", beats, checked_heartbeat, RenewLeases)
        return answers

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
        """Append text to the log of an attempt, and tell how many characters it has written in all.

        `offset` is how many it had sent before, so that the same call again adds nothing. Raises `LeaseLost`,
        `JobNotFound` or `InvalidInput`.
        """
        entry = LogEntry(job_id=job_id, fence=fence, text=text, offset=offset, tenant=tenant, worker=worker)
        (answer,) = await self.append_logs([entry])
        return _value_or_raise(answer)

    async def append_logs(self, entries: Iterable[LogEntry]) -> list[int | IngotError]:
        """Append to the logs of many attempts; each has its own answer, and one that fails stops no other."""
        good, answers = await self._run_each("entries", entries, checked_log_entry, AppendLogs)
        for entry in good:
            self.log_followers.wake(entry.job_id)
        return answers

    async def settle(
        self, job_id: str, fence: int, outcome: Outcome, *, tenant: str | None = None, worker: str | None = None
    ) -> Settled:
        """Record how an attempt ended. Raises `LeaseLost`, `JobNotFound`, `OutputMissing` or `InvalidInput`."""
        settle = Settle(job_id=job_id, fence=fence, outcome=outcome, tenant=tenant, worker=worker)
        (answer,) = await self.settle_many([settle])
        return _value_or_raise(answer)

    async def settle_many(self, settles: Iterable[Settle]) -> list[Settled | IngotError]:
        """Record how many attempts ended; each has its own answer, and one that fails stops no other."""
        good, answers = await self._run_each("settles", settles, checked_settle, SettleJobs)
        if answers:
            for listener in self._listeners:
                _notify(listener.settled, answers)
        for settle in good:
            self.job_followers.wake(settle.job_id)
        return answers

    async def _run_each(
        self,
        name: str,
        calls: Iterable[C],
        check: Callable[[object], C],
        command: Callable[..., Command[list[A | IngotError]]],
    ) -> tuple[list[C], list[A | IngotError]]:
        """Run the calls that pass their check as one command, in its field `name`.

        Return them, and an answer for each call in order: what the command answered, or the error that its check met.
        """
        given = validation.check_list(calls, name=name)
        if given:
            validation.check_integer(len(given), name=f"the number of {name}", minimum=1, maximum=checks.BATCH_JOBS_MAX)
        checked: list[C | IngotError] = []
        for call in given:
            try:
                checked.append(check(call))
            except IngotError as error:
                checked.append(error)
        good = [call for call in checked if not isinstance(call, IngotError)]
        answers = iter(await self._store.run(command(**{name: good})) if good else ())
        return good, [next(answers) if not isinstance(call, IngotError) else call for call in checked]

    async def complete(self, claim: Claim, result: object = None, *, outputs: Iterable[str] = ()) -> Settled:
        """The work is done; `result` is a JSON value, or `bytes` of JSON text.

        Raises `OutputMissing` when one of the `outputs` was not uploaded for this attempt.
        """
        claim = checks.claim(claim)
        return await self.settle(claim.job.id, claim.fence, done_outcome(result, outputs))

    async def fail(
        self, claim: Claim, error: str | BaseException, *, retry: bool = True, exit_code: int | None = None
    ) -> Settled:
        """The work failed. It is tried again later, unless `retry` is false or its attempts are used up."""
        claim = checks.claim(claim)
        outcome = Failed(error=checks.error_text(error), retry=retry, exit_code=exit_code)
        return await self.settle(claim.job.id, claim.fence, outcome)

    async def snooze(self, claim: Claim, delay: timedelta | float) -> Settled:
        """Not now: try again after the delay. Counts against nothing."""
        claim = checks.claim(claim)
        return await self.settle(claim.job.id, claim.fence, Snooze(delay=checks.delay(delay)))

    async def release(self, claim: Claim) -> Settled:
        """Give the job back unfinished. Counts against nothing."""
        claim = checks.claim(claim)
        return await self.settle(claim.job.id, claim.fence, Release())

    async def give_back(self, worker: str, *, tenant: str | None = None) -> int:
        """Release all that a worker runs, or all instances of a credential do, of one tenant or of all.

        Counts against nothing.

        Answers how many jobs those were. It is for workers that are put out: they have no say in these jobs any more.
        """
        checks.worker_id(worker)
        checks.optional_tenant_id(tenant)
        given_back = 0
        while leases := await self._store.run(ListLeases(worker=worker, tenant=tenant, limit=checks.BATCH_JOBS_MAX)):
            settles = [Settle(job_id=job_id, fence=fence, outcome=Release()) for job_id, fence in leases]
            answers = await self._store.run(SettleJobs(settles=settles))
            given_back += sum(isinstance(answer, Settled) for answer in answers)
        return given_back

    # -- files of work --------------------------------------------------------------------------------------

    async def get_running_job(
        self, job_id: str, fence: int, *, tenant: str | None = None, worker: str | None = None
    ) -> RunningJob:
        """The job whose attempt runs under this fence. Raises `JobNotFound` or `LeaseLost`."""
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
        """An input, the payload or a checkpoint of the job whose attempt runs under this fence.

        Raises `JobNotFound`, `LeaseLost` or `FileNotFound`.
        """
        checks.job_id(job_id)
        return await self._store.run(
            OpenJobFile(job_id=job_id, fence=checks.fence(fence), kind=kind, name=name, tenant=tenant, worker=worker)
        )

    # -- steering work --------------------------------------------------------------------------------------

    async def cancel(self, tenant: str, job_id: str) -> Job:
        """Stop a waiting job at once, ask a running one to stop. Raises `JobNotFound` or `JobFinished`."""
        job = await self._store.run(CancelJob(tenant=checks.tenant_id(tenant), job_id=checks.job_id(job_id)))
        if job.cancel_requested:
            for tell in self.cancel_listeners:
                tell(job)
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
        """Change a waiting job; tags can be changed in any state. Raises `JobNotFound` or `JobNotQueued`."""
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
        """Promote due work and sweep expired leases now; the maintenance loop does this by itself."""
        return await self._store.run(MaintainJobs())

    async def collect(self, limit: int = 1000) -> JobCollectionResult:
        """Remove finished jobs that have been kept long enough now; the retention loop does this by itself."""
        most = checks.COLLECT_JOBS_MAX
        return await self._store.run(
            CollectJobs(limit=validation.check_integer(limit, name="limit", minimum=1, maximum=most))
        )

    # -- pausing ----------------------------------------------------------------------------------------

    async def pause(self, tenant: str, type: str, *, by: str | None = None, act: Act | None = None) -> Pause:
        """Hand out no more jobs of this type; those that run go on, new ones are accepted. Again changes nothing."""
        body = PauseBody(by=checks.short_text(by, name="by"))
        for _ in range(CONFLICTS_MAX):
            try:
                made = await self._pauses.put(checks.tenant_id(tenant), type, body, if_version=0, act=act)
            except RecordChanged:
                with suppress(RecordNotFound):  # It was resumed at this moment.
                    return pause_from_record(await self._pauses.get(tenant, type))
            else:
                return pause_from_record(made)
        raise StoreBusy

    async def resume(self, tenant: str, type: str, *, act: Act | None = None) -> None:
        """Hand out jobs of this type again. Again changes nothing."""
        with suppress(RecordNotFound):
            await self._pauses.delete(checks.tenant_id(tenant), type, act=act)

    async def pauses(self, tenant: str) -> Sequence[Pause]:
        """The types that are paused, by type."""
        return [pause_from_record(record) for record in await self._pauses.all(checks.tenant_id(tenant))]

    # -- definitions ----------------------------------------------------------------------------------------

    async def define(self, definition: Definition, *, act: Act | None = None) -> Definition:
        """Make or replace the definition of a type, for one tenant or for all."""
        wanted = checks.definition(definition)
        return (await self._definitions.put(wanted.tenant, wanted.type, wanted, act=act)).body

    async def ensure_definition(self, definition: Definition, *, act: Act | None = None) -> Definition:
        """Have a definition of a type for all tenants, and answer it.

        It is made as this one when there is none. One that is there stays, but for a version that is lower than this.
        A change that somebody else makes at the same time is kept.
        """
        wanted = checks.definition(definition)
        if wanted.tenant is not None:
            raise InvalidInput("a definition that is ensured is for all tenants", hint="Leave out the tenant.")
        for _ in range(CONFLICTS_MAX):
            version, known = 0, None
            with suppress(RecordNotFound):
                record = await self._definitions.get(None, wanted.type)
                version, known = record.version, record.body
            if (best := ensured_definition(known, wanted)) == known:
                return best
            with suppress(RecordChanged):
                return (await self._definitions.put(None, wanted.type, best, if_version=version, act=act)).body
        raise StoreBusy

    async def definition(self, type: str, *, tenant: str | None = None) -> Definition:
        """The definition that holds for a type: the tenant's own, the one for all, or the defaults."""
        for owner in dict.fromkeys((checks.optional_tenant_id(tenant), None)):
            with suppress(RecordNotFound):
                return (await self._definitions.get(owner, type)).body
        return Definition(type=type)

    async def definitions(self, *, tenant: str | None = None) -> Sequence[Definition]:
        """The stored definitions a tenant can see, by type."""
        own = [] if tenant is None else await self._definitions.all(checks.tenant_id(tenant))
        found = [record.body for record in (*await self._definitions.all(None), *own)]
        return sorted(found, key=lambda one: one.type)


def _notify(tell: Callable[[T], None], news: T) -> None:
    try:
        tell(news)
    except Exception as error:  # What was done is done, whoever failed to hear of it.
        report("listener_failed", error)


def _value_or_raise(answer: T | IngotError) -> T:
    if isinstance(answer, IngotError):
        raise answer
    return answer
