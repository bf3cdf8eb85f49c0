"""The service for workers: registration, heartbeats, draining, removal and lists."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from ingot.events.audit import Act, new_act
from ingot.jobs import checks
from ingot.jobs.attempt_checks import checked_heartbeat
from ingot.jobs.errors import JobNotFound, WorkerNotFound
from ingot.jobs.model import Job
from ingot.jobs.ports import (
    AttemptHeartbeat,
    CheckLeases,
    CountWorkers,
    DrainWorker,
    GetWorker,
    ListDrainingWorkers,
    ListWorkers,
    MaintainWorkers,
    RegisterWorker,
    RemoveWorker,
    WorkerHeartbeat,
    WorkerStore,
)
from ingot.jobs.service import Jobs
from ingot.jobs.worker_model import (
    HeartbeatAnswer,
    LeaseStatus,
    RegisteredWorker,
    WorkerKey,
    WorkerMaintenanceResult,
    WorkerStatus,
    heartbeat_seconds,
    silent_seconds,
)
from ingot.kernel import validation
from ingot.kernel.clock import MICROS
from ingot.kernel.errors import InvalidInput
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX, Page, check_limit, decode_cursor_position, page_by_id
from ingot.kernel.slices import map_in_slices
from ingot.kernel.waits import wait_until

GRACE_SECONDS: Final = 15.0  # Time for the response of a claim to reach the worker before its jobs are released.
RECORD_SEEN_SECONDS: Final = 4.0
# The stored sign of life may be older than the last one by this share of a lease. That must not make a worker silent.
RECORD_SEEN_LEASE_SHARE: Final = 1 / 8
REPEAT_NOTICE_SECONDS: Final = 10.0
REPORTED_WORKERS_MAX: Final = 10_000
REMOVE_OFFLINE_SECONDS: Final = 30 * 86_400.0
REMOVE_JOBS_MAX: Final = 1000
MAINTAIN_WORKERS_MAX: Final = 500
COUNT_WORKERS_MAX: Final = 10_000
WORKER_ID_HINT: Final = "Use the ID of a worker credential, optionally followed by / and an instance name without a /."

Notice = tuple[str, str, int]


class HeartbeatWaiter(msgspec.Struct, eq=False):
    """A heartbeat that waits for a notice, with its current answer."""

    worker_key: WorkerKey
    job_ids: frozenset[str]
    woken: asyncio.Event
    answer: HeartbeatAnswer | None = None
    closed: bool = False


class Workers:
    """Registers workers, and answers their heartbeats."""

    def __init__(self, store: WorkerStore, jobs: Jobs, *, lease_seconds: float) -> None:
        self._store = store
        self._jobs = jobs
        self._lease_seconds = lease_seconds
        self.heartbeat_seconds = heartbeat_seconds(lease_seconds)
        self._silent_after = round(silent_seconds(lease_seconds) * MICROS)
        self.grace_seconds = GRACE_SECONDS
        self._waiters: dict[int, HeartbeatWaiter] = {}
        self._waiters_by_job: dict[str, list[HeartbeatWaiter]] = {}
        self._waiter_added = asyncio.Event()
        self._drain_changes = 0
        self._reported: OrderedDict[WorkerKey, tuple[frozenset[Notice], float]] = OrderedDict()
        self._closing = False
        jobs.cancel_listeners.append(self._wake_for_cancel)

    @property
    def waiting_heartbeats(self) -> int:
        """The number of heartbeats that have not returned."""
        return len(self._waiters)

    def stop_waiting(self) -> None:
        """End waiting heartbeats, and let later ones return without waiting."""
        self._closing = True
        for waiter in self._waiters.values():
            waiter.woken.set()

    def end_tenant_waits(self, tenant: str) -> None:
        """End the waiting heartbeats of a removed tenant's workers."""
        for waiter in self._waiters.values():
            if waiter.worker_key[0] == tenant:
                waiter.closed = True
                waiter.woken.set()

    # -- calls of workers -----------------------------------------------------------------------------------

    async def register(
        self,
        tenant: str | None,
        worker_id: str,
        types: Iterable[str],
        *,
        hostname: str | None = None,
        version: str | None = None,
        protocol: int | None = None,
        metadata: object = None,
        by: str | None = None,
    ) -> RegisteredWorker:
        """Register a worker, or bring a registered worker online again. `tenant=None` registers a shared worker.

        Raises `InvalidInput` or `TenantNotFound`.
        """
        command = RegisterWorker(
            tenant=checks.optional_tenant_id(tenant),
            worker_id=_check_new_worker_id(worker_id),
            types=checks.claim_types(types),
            hostname=checks.short_text(hostname, name="hostname"),
            version=checks.short_text(version, name="version"),
            protocol=None
            if protocol is None
            else validation.check_integer(protocol, name="protocol", minimum=1, maximum=checks.PROTOCOL_MAX),
            metadata=None if metadata is None else checks.metadata(metadata),
            by=checks.short_text(by, name="by"),
        )
        worker = await self._store.run(command)
        self._record_drain((tenant, worker.id), draining=False)
        return worker

    async def heartbeat(
        self,
        tenant: str | None,
        worker_id: str,
        beats: Iterable[AttemptHeartbeat] = (),
        *,
        wait_seconds: float = 0,
    ) -> HeartbeatAnswer:
        """Renew the leases that a worker names, and release its other jobs. `beats` are created with `Jobs.beat`.

        If there is no notice for the worker, wait up to `wait_seconds` for one: a job that has to stop, a lost job, or
        a drain. A notice that was reported a moment ago does not end the wait. Raises `WorkerNotFound` or
        `InvalidInput`.
        """
        validation.check_seconds(wait_seconds, name="wait_seconds", maximum=checks.WAIT_SECONDS_MAX)
        checked_beats = _check_heartbeats(beats)
        command = WorkerHeartbeat(
            tenant=checks.optional_tenant_id(tenant),
            worker_id=checks.worker_id(worker_id),
            beats=await _valid_heartbeats(checked_beats, tenant),
            grace=round(self.grace_seconds * MICROS),
            record_seen_after=round(min(RECORD_SEEN_SECONDS, self._lease_seconds * RECORD_SEEN_LEASE_SHARE) * MICROS),
        )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(wait_seconds, self.heartbeat_seconds)
        waiter = self._add_waiter((tenant, worker_id), command.beats)
        try:
            answer = waiter.answer = _complete_answer(checked_beats, await self._store.run(command))
            if answer.drain and waiter.worker_key not in self._jobs.draining_workers:
                self._record_drain(waiter.worker_key, draining=True)
            while (
                not (self._closing or waiter.closed)
                and (wait_end := self._wait_deadline(waiter, deadline)) > loop.time()
            ):
                if not await wait_until(waiter.woken, wait_end):
                    break
                waiter.woken.clear()
                answer = waiter.answer = await self._refresh_answer(waiter.worker_key, answer)
        finally:
            self._remove_waiter(waiter)
        self._record_reported(waiter.worker_key, answer)
        return answer

    async def drain(
        self, tenant: str | None, worker_id: str, *, act: Act | None = None, itself: bool = False
    ) -> RegisteredWorker:
        """Hand out no more jobs to a worker. Its claims are empty from now on. Raises `WorkerNotFound`.

        `itself` means that the worker itself requested this. Then no audit entry is written.
        """
        command = DrainWorker(
            tenant=checks.optional_tenant_id(tenant),
            worker_id=checks.worker_id(worker_id),
            act=None if itself else new_act(act),
        )
        worker = await self._store.run(command)
        self._record_drain((tenant, worker_id), draining=True)
        return worker

    async def remove(self, tenant: str | None, worker_id: str, *, act: Act | None = None, itself: bool = False) -> None:
        """Release the jobs of a worker, which counts against nothing, and remove the worker. Raises `WorkerNotFound`.

        `itself` means that the worker itself requested this. Then no audit entry is written.
        """
        command = RemoveWorker(
            tenant=checks.optional_tenant_id(tenant),
            worker_id=checks.worker_id(worker_id),
            limit=REMOVE_JOBS_MAX,
            act=None if itself else new_act(act),
        )
        while not await self._store.run(command):
            pass
        self._record_drain((tenant, worker_id), draining=False)
        for waiter in self._waiters.values():
            if waiter.worker_key == (tenant, worker_id):
                waiter.closed = True
                waiter.woken.set()

    # -- reading --------------------------------------------------------------------------------------------

    async def get(self, tenant: str | None, worker_id: str) -> RegisteredWorker:
        """Return the current state of a worker. Raises `WorkerNotFound`, also for a worker of another tenant."""
        worker = await self._store.run(
            GetWorker(
                tenant=checks.optional_tenant_id(tenant),
                worker_id=checks.worker_id(worker_id),
                silent_after=self._silent_after,
            )
        )
        if worker is None:
            raise WorkerNotFound(f"there is no worker {worker_id[:64]!r} in this tenant")
        return worker

    async def list(
        self, tenant: str | None, *, cursor: str | None = None, limit: int = PAGE_ROWS_DEFAULT
    ) -> Page[RegisteredWorker]:
        """Return a page of the workers of a tenant, or of the shared workers if `tenant` is `None`, ordered by ID."""
        bound_to = ("workers", checks.optional_tenant_id(tenant))
        after = decode_cursor_position(cursor, bound_to=bound_to, is_valid=checks.is_worker_id)
        workers = await self._store.run(
            ListWorkers(tenant=tenant, after=after, limit=check_limit(limit), silent_after=self._silent_after)
        )
        return page_by_id(workers, limit=limit, bound_to=bound_to)

    async def counts(self, tenant: str | None) -> dict[WorkerStatus, int]:
        """Count the workers of a tenant, or the shared workers, by status. Only the first 10,000 are counted."""
        counts = Counter[WorkerStatus]()
        cursor: str | None = None
        for _ in range(COUNT_WORKERS_MAX // PAGE_ROWS_MAX):
            page = await self.list(tenant, cursor=cursor, limit=PAGE_ROWS_MAX)
            counts.update(worker.status for worker in page.items)
            if (cursor := page.next_cursor) is None:
                break
        return {status: counts[status] for status in WorkerStatus}

    async def total_counts(self) -> dict[WorkerStatus, int]:
        """Count the workers of all tenants, and the shared ones, by status."""
        return await self._store.run(CountWorkers(silent_after=self._silent_after))

    # -- maintenance ----------------------------------------------------------------------------------------

    async def maintain(self) -> WorkerMaintenanceResult:
        """Mark workers that were silent for a lease as offline, and remove workers that have been offline for long.

        The maintenance loop does this automatically.
        """
        command = MaintainWorkers(
            offline_after=round(self._lease_seconds * MICROS),
            remove_after=round(REMOVE_OFFLINE_SECONDS * MICROS),
            limit=MAINTAIN_WORKERS_MAX,
        )
        result = await self._store.run(command)
        if result.marked_offline:
            await self.refresh_draining_workers()
        return result

    async def poll(self) -> None:
        """Find changes by other processes, with one query for all waiting heartbeats.

        The poller loop does this automatically.
        """
        await self.refresh_draining_workers()
        waiting = [
            (waiter, answer)
            for waiter in self._waiters.values()
            if (answer := waiter.answer) is not None
            and (answer.jobs or waiter.worker_key in self._jobs.draining_workers)
        ]
        leases = [lease for _, answer in waiting for lease in answer.jobs if not lease.lost]
        current_leases = await self._check_leases(leases)
        for waiter, answer in waiting:
            drain = waiter.worker_key in self._jobs.draining_workers
            current_answer = _updated_answer(answer, current_leases, drain=drain)
            if _notices_of(current_answer) - _notices_of(answer):
                waiter.woken.set()

    async def refresh_draining_workers(self) -> None:
        """Read from the store which workers are draining."""
        changes_before = self._drain_changes
        draining_workers = await self._store.run(ListDrainingWorkers())
        if changes_before == self._drain_changes:  # Otherwise a drain during the query is newer than its result.
            self._jobs.set_draining_workers(draining_workers)

    async def wait_until_poll_needed(self) -> None:
        """Wait until changes by other processes can matter.

        In an exclusive store, that is when a heartbeat waits.
        """
        while self._store.is_exclusive and not self._waiters:
            self._waiter_added.clear()
            await self._waiter_added.wait()

    # -- waiting heartbeats ---------------------------------------------------------------------------------

    def _add_waiter(self, key: WorkerKey, beats: Sequence[AttemptHeartbeat]) -> HeartbeatWaiter:
        """Add a waiter. Call this before the heartbeat runs in the store, so that no notice is missed."""
        waiter = HeartbeatWaiter(key, frozenset(beat.job_id for beat in beats), asyncio.Event())
        self._waiters[id(waiter)] = waiter
        for job_id in waiter.job_ids:
            self._waiters_by_job.setdefault(job_id, []).append(waiter)
        self._waiter_added.set()
        return waiter

    def _remove_waiter(self, waiter: HeartbeatWaiter) -> None:
        del self._waiters[id(waiter)]
        for job_id in waiter.job_ids:
            self._waiters_by_job[job_id].remove(waiter)
            if not self._waiters_by_job[job_id]:
                del self._waiters_by_job[job_id]

    def _wait_deadline(self, waiter: HeartbeatWaiter, deadline: float) -> float:
        """Return until when the heartbeat may wait. New notices end the wait at once, repeated ones after a while."""
        notices = _notices_of(waiter.answer)
        if not notices:
            return deadline
        reported_notices, reported_at = self._reported.get(waiter.worker_key, (frozenset[Notice](), 0.0))
        return min(deadline, reported_at + REPEAT_NOTICE_SECONDS) if notices <= reported_notices else 0.0

    async def _refresh_answer(self, key: WorkerKey, answer: HeartbeatAnswer) -> HeartbeatAnswer:
        current_leases = await self._check_leases([lease for lease in answer.jobs if not lease.lost])
        return _updated_answer(answer, current_leases, drain=key in self._jobs.draining_workers)

    async def _check_leases(self, leases: Sequence[LeaseStatus]) -> dict[tuple[str, int], LeaseStatus]:
        """Read the current state of these leases, by job ID and fence."""
        current_leases = await self._store.run(CheckLeases(leases=leases)) if leases else ()
        return {(lease.job_id, lease.fence): lease for lease in current_leases}

    def _record_reported(self, key: WorkerKey, answer: HeartbeatAnswer) -> None:
        if notices := _notices_of(answer):
            self._reported[key] = notices, asyncio.get_running_loop().time()
            self._reported.move_to_end(key)
            if len(self._reported) > REPORTED_WORKERS_MAX:
                self._reported.popitem(last=False)

    def _record_drain(self, key: WorkerKey, *, draining: bool) -> None:
        self._drain_changes += 1
        draining_workers = self._jobs.draining_workers
        self._jobs.set_draining_workers(draining_workers | {key} if draining else draining_workers - {key})
        if draining:
            for waiter in self._waiters.values():
                if waiter.worker_key == key:
                    waiter.woken.set()

    def _wake_for_cancel(self, job: Job) -> None:
        for waiter in self._waiters_by_job.get(job.id, ()):
            waiter.woken.set()


def _notices_of(answer: HeartbeatAnswer | None) -> frozenset[Notice]:
    """Return what a worker has to learn at once: a drain, jobs that have to stop, and lost jobs."""
    if answer is None:
        return frozenset()
    drain = [("drain", "", 0)] if answer.drain else []
    return frozenset(
        [
            *drain,
            *(("cancel", lease.job_id, lease.fence) for lease in answer.jobs if lease.cancel_requested),
            *(("lost", lease.job_id, lease.fence) for lease in answer.jobs if lease.lost),
        ]
    )


def _updated_answer(
    answer: HeartbeatAnswer, current_leases: dict[tuple[str, int], LeaseStatus], *, drain: bool
) -> HeartbeatAnswer:
    """Return an answer with the current state of its leases."""
    leases = [current_leases.get((lease.job_id, lease.fence), lease) for lease in answer.jobs]
    return HeartbeatAnswer(jobs=leases, drain=drain)


def _check_new_worker_id(value: object) -> str:
    worker_id = checks.worker_id(value)
    credential, slash, instance = worker_id.partition("/")
    if not credential or (slash and not instance) or "/" in instance:
        raise InvalidInput(f"the worker ID {worker_id[:64]!r} is not valid", hint=WORKER_ID_HINT)
    return worker_id


def _check_heartbeats(values: Iterable[AttemptHeartbeat]) -> list[AttemptHeartbeat]:
    """Return the heartbeats as a list. Raises `InvalidInput` for too many, and for two of the same job."""
    beats = [
        validation.check_instance(beat, AttemptHeartbeat, name="beat")
        for beat in validation.check_list(values, name="beats")
    ]
    if len(beats) > checks.BATCH_JOBS_MAX:
        raise InvalidInput(f"a heartbeat must name at most {checks.BATCH_JOBS_MAX} jobs, got {len(beats)} jobs")
    if len({beat.job_id for beat in beats}) < len(beats):
        raise InvalidInput(
            "a heartbeat names a job twice", hint="Name each job once, with the fence of its current claim."
        )
    return beats


async def _valid_heartbeats(beats: Sequence[AttemptHeartbeat], tenant: str | None) -> list[AttemptHeartbeat]:
    """Return the heartbeats with a valid job ID, restricted to this tenant. The others are reported as lost later."""

    def check_one(beat: AttemptHeartbeat) -> AttemptHeartbeat | None:
        with suppress(JobNotFound):
            return checked_heartbeat(beat if tenant is None else msgspec.structs.replace(beat, tenant=tenant))
        return None

    return [beat for beat in await map_in_slices(check_one, beats) if beat is not None]


def _complete_answer(beats: Sequence[AttemptHeartbeat], answer: HeartbeatAnswer) -> HeartbeatAnswer:
    """Add a lost lease for each heartbeat that the store did not see, and order the leases like the heartbeats."""
    if len(answer.jobs) == len(beats):
        return answer
    leases_by_job = {lease.job_id: lease for lease in answer.jobs}
    leases = [leases_by_job.get(beat.job_id) or LeaseStatus(job_id=beat.job_id, fence=beat.fence) for beat in beats]
    return HeartbeatAnswer(jobs=leases, drain=answer.drain)
