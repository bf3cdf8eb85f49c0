"""Workers: they register, are heard of again and again, and go."""

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
)
from ingot.kernel import validation
from ingot.kernel.clock import MICROS
from ingot.kernel.errors import InvalidInput
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX, Page, check_limit, decode_cursor_position, page_by_id
from ingot.kernel.waits import wait_until

BEATS_PER_LEASE: Final = 3
GRACE_SECONDS: Final = 15.0  # The answer to a claim may be on its way for so long.
RECORD_SEEN_SECONDS: Final = 5.0
REPEAT_NOTICE_SECONDS: Final = 10.0
REPORTED_WORKERS_MAX: Final = 10_000
REMOVE_OFFLINE_SECONDS: Final = 30 * 86_400.0
REMOVE_JOBS_MAX: Final = 1000
MAINTAIN_WORKERS_MAX: Final = 500
COUNT_WORKERS_MAX: Final = 10_000
WORKER_ID_HINT: Final = "It is the id of a credential, or that, one / and the name of an instance."

Notice = tuple[str, str, int]


class HeartbeatWaiter(msgspec.Struct, eq=False):
    """A heartbeat that waits for something to be told, and what it was told so far."""

    worker_key: WorkerKey
    job_ids: frozenset[str]
    woken: asyncio.Event
    answer: HeartbeatAnswer | None = None
    closed: bool = False


class Workers:
    """The workers of this store."""

    def __init__(self, store: WorkerStore, jobs: Jobs, *, lease_seconds: float) -> None:
        self._store = store
        self._jobs = jobs
        self._lease_seconds = lease_seconds
        self.heartbeat_seconds = lease_seconds / BEATS_PER_LEASE
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
        """How many heartbeats are under way or wait."""
        return len(self._waiters)

    def stop_waiting(self) -> None:
        """End waiting heartbeats, and let no others wait."""
        self._closing = True
        for listener in self._waiters.values():
            listener.woken.set()

    def end_tenant_waits(self, tenant: str) -> None:
        """The tenant was removed: heartbeats of its workers wait no longer."""
        for listener in self._waiters.values():
            if listener.worker_key[0] == tenant:
                listener.closed = True
                listener.woken.set()

    # -- what workers say -----------------------------------------------------------------------------------

    async def register(
        self,
        tenant: str | None,
        worker_id: str,
        types: Iterable[str],
        *,
        hostname: str | None = None,
        version: str | None = None,
        metadata: object = None,
        by: str | None = None,
    ) -> RegisteredWorker:
        """Keep a worker; again brings it online again. `tenant=None` is one that serves all tenants.

        Raises `InvalidInput` or `TenantNotFound`.
        """
        command = RegisterWorker(
            tenant=checks.optional_tenant_id(tenant),
            worker_id=_check_new_worker_id(worker_id),
            types=checks.claim_types(types),
            hostname=checks.short_text(hostname, name="hostname"),
            version=checks.short_text(version, name="version"),
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
        """Renew what a worker names, made with `Jobs.beat`; what it holds and does not name is given back.

        With nothing to be told, wait up to `wait_seconds` for something: a job that is to stop, one that is lost, or
        that it is to take no more. What was just told is no news. Raises `WorkerNotFound` or `InvalidInput`.
        """
        validation.check_seconds(wait_seconds, name="wait_seconds", maximum=checks.WAIT_SECONDS_MAX)
        named = _check_heartbeats(beats)
        command = WorkerHeartbeat(
            tenant=checks.optional_tenant_id(tenant),
            worker_id=checks.worker_id(worker_id),
            beats=_valid_heartbeats(named, tenant),
            grace=round(self.grace_seconds * MICROS),
            record_seen_after=round(min(RECORD_SEEN_SECONDS, self._lease_seconds / 4) * MICROS),
        )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(wait_seconds, self.heartbeat_seconds)
        listener = self._add_waiter((tenant, worker_id), command.beats)
        try:
            heard = listener.answer = _complete_answer(named, await self._store.run(command))
            if heard.drain and listener.worker_key not in self._jobs.draining_workers:
                self._record_drain(listener.worker_key, draining=True)
            while (
                not (self._closing or listener.closed)
                and (until := self._wait_deadline(listener, deadline)) > loop.time()
            ):
                if not await wait_until(listener.woken, until):
                    break
                listener.woken.clear()
                heard = listener.answer = await self._refresh_answer(listener.worker_key, heard)
        finally:
            self._remove_waiter(listener)
        self._record_reported(listener.worker_key, heard)
        return heard

    async def drain(
        self, tenant: str | None, worker_id: str, *, act: Act | None = None, itself: bool = False
    ) -> RegisteredWorker:
        """Have a worker take no more work. Its claims are empty from now on. Raises `WorkerNotFound`.

        With `itself` it is the worker who says so, and nothing is put on record.
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
        """Give back what a worker holds, uncounted, and forget it. Raises `WorkerNotFound`.

        With `itself` it is the worker who says so, and nothing is put on record.
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
        for listener in self._waiters.values():
            if listener.worker_key == (tenant, worker_id):
                listener.closed = True
                listener.woken.set()

    # -- looking --------------------------------------------------------------------------------------------

    async def get(self, tenant: str | None, worker_id: str) -> RegisteredWorker:
        """The worker as it stands. Raises `WorkerNotFound`, for another tenant's too."""
        worker = await self._store.run(
            GetWorker(tenant=checks.optional_tenant_id(tenant), worker_id=checks.worker_id(worker_id))
        )
        if worker is None:
            raise WorkerNotFound(f"there is no worker {worker_id[:64]!r} in this tenant")
        return worker

    async def list(
        self, tenant: str | None, *, cursor: str | None = None, limit: int = PAGE_ROWS_DEFAULT
    ) -> Page[RegisteredWorker]:
        """A page of the workers of a tenant, or of the shared ones, by id."""
        bound_to = ("workers", checks.optional_tenant_id(tenant))
        after = decode_cursor_position(cursor, bound_to=bound_to, is_valid=checks.is_worker_id)
        found = await self._store.run(ListWorkers(tenant=tenant, after=after, limit=check_limit(limit)))
        return page_by_id(found, limit=limit, bound_to=bound_to)

    async def counts(self, tenant: str | None) -> dict[WorkerStatus, int]:
        """The workers of a tenant, or the shared ones, by status: the first 10,000 of them."""
        counted = Counter[WorkerStatus]()
        cursor: str | None = None
        for _ in range(COUNT_WORKERS_MAX // PAGE_ROWS_MAX):
            page = await self.list(tenant, cursor=cursor, limit=PAGE_ROWS_MAX)
            counted.update(worker.status for worker in page.items)
            if (cursor := page.next_cursor) is None:
                break
        return {status: counted[status] for status in WorkerStatus}

    # -- as time goes by ------------------------------------------------------------------------------------

    async def maintain(self) -> WorkerMaintenanceResult:
        """Take silent workers for offline, and forget those that were so for long; a loop does this by itself."""
        command = MaintainWorkers(
            offline_after=round(self._lease_seconds * MICROS),
            remove_after=round(REMOVE_OFFLINE_SECONDS * MICROS),
            limit=MAINTAIN_WORKERS_MAX,
        )
        tended = await self._store.run(command)
        if tended.marked_offline:
            await self.refresh_draining_workers()
        return tended

    async def poll(self) -> None:
        """See what others did, with one look for all heartbeats that wait; a loop does this by itself."""
        await self.refresh_draining_workers()
        waiting = [
            (listener, heard)
            for listener in self._waiters.values()
            if (heard := listener.answer) is not None
            and (heard.jobs or listener.worker_key in self._jobs.draining_workers)
        ]
        leases = [held for _, heard in waiting for held in heard.jobs if not held.lost]
        now = await self._now(leases)
        for listener, heard in waiting:
            told = _updated_answer(heard, now, drain=listener.worker_key in self._jobs.draining_workers)
            if _notices_of(told) - _notices_of(heard):
                listener.woken.set()

    async def refresh_draining_workers(self) -> None:
        """Learn which workers are to take no more work."""
        before = self._drain_changes
        found = await self._store.run(ListDrainingWorkers())
        if before == self._drain_changes:  # Otherwise we know better.
            self._jobs.set_draining_workers(found)

    async def wait_until_poll_needed(self) -> None:
        """Wait until others may do something that concerns us."""
        while self._store.is_exclusive and not self._waiters:
            self._waiter_added.clear()
            await self._waiter_added.wait()

    # -- those who wait -------------------------------------------------------------------------------------

    def _add_waiter(self, key: WorkerKey, beats: Sequence[AttemptHeartbeat]) -> HeartbeatWaiter:
        """Register before the worker is heard, so that nothing is missed."""
        listener = HeartbeatWaiter(key, frozenset(beat.job_id for beat in beats), asyncio.Event())
        self._waiters[id(listener)] = listener
        for job_id in listener.job_ids:
            self._waiters_by_job.setdefault(job_id, []).append(listener)
        self._waiter_added.set()
        return listener

    def _remove_waiter(self, listener: HeartbeatWaiter) -> None:
        del self._waiters[id(listener)]
        for job_id in listener.job_ids:
            self._waiters_by_job[job_id].remove(listener)
            if not self._waiters_by_job[job_id]:
                del self._waiters_by_job[job_id]

    def _wait_deadline(self, listener: HeartbeatWaiter, deadline: float) -> float:
        """Until when there is nothing to be told."""
        matters = _notices_of(listener.answer)
        if not matters:
            return deadline
        told, at = self._reported.get(listener.worker_key, (frozenset[Notice](), 0.0))
        return min(deadline, at + REPEAT_NOTICE_SECONDS) if matters <= told else 0.0

    async def _refresh_answer(self, key: WorkerKey, heard: HeartbeatAnswer) -> HeartbeatAnswer:
        now = await self._now([held for held in heard.jobs if not held.lost])
        return _updated_answer(heard, now, drain=key in self._jobs.draining_workers)

    async def _now(self, leases: Sequence[LeaseStatus]) -> dict[tuple[str, int], LeaseStatus]:
        """How these leases stand now, by job and fence."""
        standing = await self._store.run(CheckLeases(leases=leases)) if leases else ()
        return {(held.job_id, held.fence): held for held in standing}

    def _record_reported(self, key: WorkerKey, heard: HeartbeatAnswer) -> None:
        if matters := _notices_of(heard):
            self._reported[key] = matters, asyncio.get_running_loop().time()
            self._reported.move_to_end(key)
            if len(self._reported) > REPORTED_WORKERS_MAX:
                self._reported.popitem(last=False)

    def _record_drain(self, key: WorkerKey, *, draining: bool) -> None:
        self._drain_changes += 1
        known = self._jobs.draining_workers
        self._jobs.set_draining_workers(known | {key} if draining else known - {key})
        if draining:
            for listener in self._waiters.values():
                if listener.worker_key == key:
                    listener.woken.set()

    def _wake_for_cancel(self, job: Job) -> None:
        for listener in self._waiters_by_job.get(job.id, ()):
            listener.woken.set()


def _notices_of(heard: HeartbeatAnswer | None) -> frozenset[Notice]:
    """What a worker has to be told at once."""
    if heard is None:
        return frozenset()
    drain = [("drain", "", 0)] if heard.drain else []
    return frozenset(
        [
            *drain,
            *(("cancel", held.job_id, held.fence) for held in heard.jobs if held.cancel_requested),
            *(("lost", held.job_id, held.fence) for held in heard.jobs if held.lost),
        ]
    )


def _updated_answer(heard: HeartbeatAnswer, now: dict[tuple[str, int], LeaseStatus], *, drain: bool) -> HeartbeatAnswer:
    """What was heard, as it stands now."""
    return HeartbeatAnswer(jobs=[now.get((held.job_id, held.fence), held) for held in heard.jobs], drain=drain)


def _check_new_worker_id(value: object) -> str:
    worker_id = checks.worker_id(value)
    credential, slash, instance = worker_id.partition("/")
    if not credential or (slash and not instance) or "/" in instance:
        raise InvalidInput(f"the worker id {worker_id[:64]!r} is not usable", hint=WORKER_ID_HINT)
    return worker_id


def _check_heartbeats(given: Iterable[AttemptHeartbeat]) -> list[AttemptHeartbeat]:
    """What a worker names, each once."""
    named = [
        validation.check_instance(beat, AttemptHeartbeat, name="beat")
        for beat in validation.check_list(given, name="beats")
    ]
    if len(named) > checks.BATCH_JOBS_MAX:
        raise InvalidInput(f"there are {len(named)} jobs; the most at once is {checks.BATCH_JOBS_MAX}")
    if len({beat.job_id for beat in named}) < len(named):
        raise InvalidInput("a job is named twice", hint="Name each job once, with the fence of its claim.")
    return named


def _valid_heartbeats(named: Iterable[AttemptHeartbeat], tenant: str | None) -> list[AttemptHeartbeat]:
    """Those that can be judged, as jobs of this tenant: what no job can be called is lost."""
    sound = []
    for beat in named:
        with suppress(JobNotFound):
            sound.append(checked_heartbeat(beat if tenant is None else msgspec.structs.replace(beat, tenant=tenant)))
    return sound


def _complete_answer(named: Sequence[AttemptHeartbeat], heard: HeartbeatAnswer) -> HeartbeatAnswer:
    """An answer for each that was named."""
    if len(heard.jobs) == len(named):
        return heard
    known = {held.job_id: held for held in heard.jobs}
    jobs = [known.get(beat.job_id) or LeaseStatus(job_id=beat.job_id, fence=beat.fence) for beat in named]
    return HeartbeatAnswer(jobs=jobs, drain=heard.drain)
