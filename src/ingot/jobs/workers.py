"""Workers: they register, are heard of again and again, and go."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from ingot.events.audit import Act, acting
from ingot.jobs import checks
from ingot.jobs.calls import checked_beat
from ingot.jobs.crew import CrewTended, Heard, Held, Worker, WorkerKey, WorkerStatus
from ingot.jobs.errors import JobNotFound, WorkerNotFound
from ingot.jobs.model import Job
from ingot.jobs.ports import (
    Beat,
    CheckLeases,
    DrainWorker,
    GetWorker,
    HearWorker,
    ListDraining,
    ListWorkers,
    RegisterWorker,
    RemoveWorker,
    TendWorkers,
    WorkerStore,
)
from ingot.jobs.service import Jobs
from ingot.kernel import values
from ingot.kernel.clock import MICROS
from ingot.kernel.errors import InvalidInput
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX, Page, check_limit, page_by_id, read_place
from ingot.kernel.waits import wait_until

BEATS_PER_LEASE: Final = 3
GRACE_SECONDS: Final = 15.0  # The answer to a claim may be on its way for so long.
NOTE_SECONDS: Final = 5.0
TELL_AGAIN_SECONDS: Final = 10.0
TOLD_MAX: Final = 10_000
FORGET_SECONDS: Final = 30 * 86_400.0
REMOVE_JOBS_MAX: Final = 1000
TEND_WORKERS_MAX: Final = 500
COUNT_WORKERS_MAX: Final = 10_000
ID_HINT: Final = "It is the id of a credential, or that, one / and the name of an instance."

Matter = tuple[str, str, int]


class Listener(msgspec.Struct, eq=False):
    """A heartbeat that waits for something to be told, and what it was told so far."""

    key: WorkerKey
    names: frozenset[str]
    woken: asyncio.Event
    heard: Heard | None = None
    over: bool = False


class Workers:
    """The workers of this store."""

    def __init__(self, store: WorkerStore, jobs: Jobs, *, lease_seconds: float) -> None:
        self._store = store
        self._jobs = jobs
        self._lease_seconds = lease_seconds
        self.heartbeat_seconds = lease_seconds / BEATS_PER_LEASE
        self.grace_seconds = GRACE_SECONDS
        self._listeners: dict[int, Listener] = {}
        self._by_job: dict[str, list[Listener]] = {}
        self._begun = asyncio.Event()
        self._drains_changed = 0
        self._told: OrderedDict[WorkerKey, tuple[frozenset[Matter], float]] = OrderedDict()
        self._closing = False
        jobs.on_cancel.append(self._hear_cancel)

    @property
    def waiting(self) -> int:
        """How many heartbeats are under way or wait."""
        return len(self._listeners)

    def stop_waiting(self) -> None:
        """End waiting heartbeats, and let no others wait."""
        self._closing = True
        for listener in self._listeners.values():
            listener.woken.set()

    def let_go(self, tenant: str) -> None:
        """The tenant was removed: heartbeats of its workers wait no longer."""
        for listener in self._listeners.values():
            if listener.key[0] == tenant:
                listener.over = True
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
    ) -> Worker:
        """Keep a worker; again brings it online again. `tenant=None` is one that serves all tenants.

        Raises `InvalidInput` or `TenantNotFound`.
        """
        command = RegisterWorker(
            tenant=checks.tenant_or_any(tenant),
            worker_id=_worker_id(worker_id),
            types=checks.claim_types(types),
            hostname=checks.short_text(hostname, what="hostname"),
            version=checks.short_text(version, what="version"),
            metadata=None if metadata is None else checks.metadata(metadata),
            by=checks.short_text(by, what="by"),
        )
        worker = await self._store.run(command)
        self._note_drain((tenant, worker.id), draining=False)
        return worker

    async def heartbeat(
        self,
        tenant: str | None,
        worker_id: str,
        beats: Iterable[Beat] = (),
        *,
        wait_seconds: float = 0,
    ) -> Heard:
        """Renew what a worker names, made with `Jobs.beat`; what it holds and does not name is given back.

        With nothing to be told, wait up to `wait_seconds` for something: a job that is to stop, one that is lost, or
        that it is to take no more. What was just told is no news. Raises `WorkerNotFound` or `InvalidInput`.
        """
        values.seconds(wait_seconds, what="wait_seconds", most=checks.WAIT_SECONDS_MAX)
        named = _named(beats)
        command = HearWorker(
            tenant=checks.tenant_or_any(tenant),
            worker_id=checks.worker_id(worker_id),
            beats=_sound(named, tenant),
            grace=round(self.grace_seconds * MICROS),
            note_after=round(min(NOTE_SECONDS, self._lease_seconds / 4) * MICROS),
        )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(wait_seconds, self.heartbeat_seconds)
        listener = self._listen((tenant, worker_id), command.beats)
        try:
            heard = listener.heard = _answered(named, await self._store.run(command))
            if heard.drain and listener.key not in self._jobs.draining:
                self._note_drain(listener.key, draining=True)
            while (
                not (self._closing or listener.over) and (until := self._wait_until(listener, deadline)) > loop.time()
            ):
                if not await wait_until(listener.woken, until):
                    break
                listener.woken.clear()
                heard = listener.heard = await self._look_again(listener.key, heard)
        finally:
            self._leave(listener)
        self._note_told(listener.key, heard)
        return heard

    async def drain(
        self, tenant: str | None, worker_id: str, *, act: Act | None = None, itself: bool = False
    ) -> Worker:
        """Have a worker take no more work. Its claims are empty from now on. Raises `WorkerNotFound`.

        With `itself` it is the worker who says so, and nothing is put on record.
        """
        command = DrainWorker(
            tenant=checks.tenant_or_any(tenant),
            worker_id=checks.worker_id(worker_id),
            act=None if itself else acting(act),
        )
        worker = await self._store.run(command)
        self._note_drain((tenant, worker_id), draining=True)
        return worker

    async def remove(self, tenant: str | None, worker_id: str, *, act: Act | None = None, itself: bool = False) -> None:
        """Give back what a worker holds, uncounted, and forget it. Raises `WorkerNotFound`.

        With `itself` it is the worker who says so, and nothing is put on record.
        """
        command = RemoveWorker(
            tenant=checks.tenant_or_any(tenant),
            worker_id=checks.worker_id(worker_id),
            limit=REMOVE_JOBS_MAX,
            act=None if itself else acting(act),
        )
        while not await self._store.run(command):
            pass
        self._note_drain((tenant, worker_id), draining=False)
        for listener in self._listeners.values():
            if listener.key == (tenant, worker_id):
                listener.over = True
                listener.woken.set()

    # -- looking --------------------------------------------------------------------------------------------

    async def get(self, tenant: str | None, worker_id: str) -> Worker:
        """The worker as it stands. Raises `WorkerNotFound`, for another tenant's too."""
        worker = await self._store.run(
            GetWorker(tenant=checks.tenant_or_any(tenant), worker_id=checks.worker_id(worker_id))
        )
        if worker is None:
            raise WorkerNotFound(f"there is no worker {worker_id[:64]!r} in this tenant")
        return worker

    async def list(
        self, tenant: str | None, *, cursor: str | None = None, limit: int = PAGE_ROWS_DEFAULT
    ) -> Page[Worker]:
        """A page of the workers of a tenant, or of the shared ones, by id."""
        bound_to = ("workers", checks.tenant_or_any(tenant))
        after = read_place(cursor, bound_to=bound_to, fits=checks.is_worker_id)
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

    async def tend(self) -> CrewTended:
        """Take silent workers for offline, and forget those that were so for long; a loop does this by itself."""
        command = TendWorkers(
            silent_after=round(self._lease_seconds * MICROS),
            forget_after=round(FORGET_SECONDS * MICROS),
            limit=TEND_WORKERS_MAX,
        )
        tended = await self._store.run(command)
        if tended.silent:
            await self.look_for_drains()
        return tended

    async def look(self) -> None:
        """See what others did, with one look for all heartbeats that wait; a loop does this by itself."""
        await self.look_for_drains()
        waiting = [
            (listener, heard)
            for listener in self._listeners.values()
            if (heard := listener.heard) is not None and (heard.jobs or listener.key in self._jobs.draining)
        ]
        leases = [held for _, heard in waiting for held in heard.jobs if not held.lost]
        now = await self._now(leases)
        for listener, heard in waiting:
            told = _stands(heard, now, drain=listener.key in self._jobs.draining)
            if _matters(told) - _matters(heard):
                listener.woken.set()

    async def look_for_drains(self) -> None:
        """Learn which workers are to take no more work."""
        before = self._drains_changed
        found = await self._store.run(ListDraining())
        if before == self._drains_changed:  # Otherwise we know better.
            self._jobs.set_draining(found)

    async def until_worth_a_look(self) -> None:
        """Wait until others may do something that concerns us."""
        while self._store.alone and not self._listeners:
            self._begun.clear()
            await self._begun.wait()

    # -- those who wait -------------------------------------------------------------------------------------

    def _listen(self, key: WorkerKey, beats: Sequence[Beat]) -> Listener:
        """Register before the worker is heard, so that nothing is missed."""
        listener = Listener(key, frozenset(beat.job_id for beat in beats), asyncio.Event())
        self._listeners[id(listener)] = listener
        for job_id in listener.names:
            self._by_job.setdefault(job_id, []).append(listener)
        self._begun.set()
        return listener

    def _leave(self, listener: Listener) -> None:
        del self._listeners[id(listener)]
        for job_id in listener.names:
            self._by_job[job_id].remove(listener)
            if not self._by_job[job_id]:
                del self._by_job[job_id]

    def _wait_until(self, listener: Listener, deadline: float) -> float:
        """Until when there is nothing to be told."""
        matters = _matters(listener.heard)
        if not matters:
            return deadline
        told, at = self._told.get(listener.key, (frozenset[Matter](), 0.0))
        return min(deadline, at + TELL_AGAIN_SECONDS) if matters <= told else 0.0

    async def _look_again(self, key: WorkerKey, heard: Heard) -> Heard:
        now = await self._now([held for held in heard.jobs if not held.lost])
        return _stands(heard, now, drain=key in self._jobs.draining)

    async def _now(self, leases: Sequence[Held]) -> dict[tuple[str, int], Held]:
        """How these leases stand now, by job and fence."""
        standing = await self._store.run(CheckLeases(leases=leases)) if leases else ()
        return {(held.job_id, held.fence): held for held in standing}

    def _note_told(self, key: WorkerKey, heard: Heard) -> None:
        if matters := _matters(heard):
            self._told[key] = matters, asyncio.get_running_loop().time()
            self._told.move_to_end(key)
            if len(self._told) > TOLD_MAX:
                self._told.popitem(last=False)

    def _note_drain(self, key: WorkerKey, *, draining: bool) -> None:
        self._drains_changed += 1
        known = self._jobs.draining
        self._jobs.set_draining(known | {key} if draining else known - {key})
        if draining:
            for listener in self._listeners.values():
                if listener.key == key:
                    listener.woken.set()

    def _hear_cancel(self, job: Job) -> None:
        for listener in self._by_job.get(job.id, ()):
            listener.woken.set()


def _matters(heard: Heard | None) -> frozenset[Matter]:
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


def _stands(heard: Heard, now: dict[tuple[str, int], Held], *, drain: bool) -> Heard:
    """What was heard, as it stands now."""
    return Heard(jobs=[now.get((held.job_id, held.fence), held) for held in heard.jobs], drain=drain)


def _worker_id(value: object) -> str:
    worker_id = checks.worker_id(value)
    credential, slash, instance = worker_id.partition("/")
    if not credential or (slash and not instance) or "/" in instance:
        raise InvalidInput(f"the worker id {worker_id[:64]!r} is not usable", hint=ID_HINT)
    return worker_id


def _named(given: Iterable[Beat]) -> list[Beat]:
    """What a worker names, each once."""
    named = [values.instance(beat, Beat, what="beat") for beat in values.several(given, what="beats")]
    if len(named) > checks.BATCH_JOBS_MAX:
        raise InvalidInput(f"there are {len(named)} jobs; the most at once is {checks.BATCH_JOBS_MAX}")
    if len({beat.job_id for beat in named}) < len(named):
        raise InvalidInput("a job is named twice", hint="Name each job once, with the fence of its claim.")
    return named


def _sound(named: Iterable[Beat], tenant: str | None) -> list[Beat]:
    """Those that can be judged, as jobs of this tenant: what no job can be called is lost."""
    sound = []
    for beat in named:
        with suppress(JobNotFound):
            sound.append(checked_beat(beat if tenant is None else msgspec.structs.replace(beat, tenant=tenant)))
    return sound


def _answered(named: Sequence[Beat], heard: Heard) -> Heard:
    """An answer for each that was named."""
    if len(heard.jobs) == len(named):
        return heard
    known = {held.job_id: held for held in heard.jobs}
    jobs = [known.get(beat.job_id) or Held(job_id=beat.job_id, fence=beat.fence) for beat in named]
    return Heard(jobs=jobs, drain=heard.drain)
