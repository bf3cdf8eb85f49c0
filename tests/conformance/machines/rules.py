"""The rules that machines are made of."""

from __future__ import annotations

from typing import ClassVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ingot.identity import Limits
from ingot.jobs import Definition, JobStatus, OnDead, Outcome, Progress, Release, Settle
from ingot.kernel.clock import MICROS
from tests.conformance.machines import strategies as draw
from tests.conformance.machines.checked_store import World
from tests.conformance.machines.job_model import Draft, Record
from tests.factories import LEASE_SECONDS

UNFINISHED_JOBS_MAX = 6
JOBS_MAX = 40
FINISHED = (JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED)


class Machine(RuleBasedStateMachine):
    """A world to act on; after each step everything in it is compared."""

    engine: ClassVar[str]
    slugs: ClassVar[tuple[str, ...]] = ()
    definitions: ClassVar[tuple[Definition, ...]] = ()

    world: World

    @initialize()
    def open(self) -> None:
        self.world = World(self.engine, self.slugs)
        for definition in self.definitions:
            self.world.run(self.world.define(definition))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.close()

    @invariant()
    def the_store_equals_its_model(self) -> None:
        self.world.run(self.world.check())

    @property
    def tenant(self) -> str:
        return self.world.bench.tenant

    def owner(self, whose: int) -> str:
        """One of the tenants."""
        owners = [self.tenant, *self.world.tenants]
        return owners[whose % len(owners)]

    def job(self, place: int, *preferred: JobStatus) -> Record:
        """One of the jobs, from the newest back; one in a preferred status when there is any."""
        jobs = list(self.world.model.jobs.values())
        jobs = [job for job in jobs if job.status in preferred] or jobs
        return jobs[-1 - place % len(jobs)]

    def claimed(self, place: int) -> tuple[str, int]:
        """One of the claims ever handed out, from the newest back."""
        return self.world.claims[-1 - place % len(self.world.claims)]

    def moment(self, seconds: float | None) -> int | None:
        now = self.world.model.time(self.world.clock.micros())
        return None if seconds is None else now + round(seconds * MICROS)

    def has_jobs(self) -> bool:
        return bool(self.world.model.jobs)

    def has_claims(self) -> bool:
        return bool(self.world.claims)

    def has_running(self) -> bool:
        return any(job.is_running for job in self.world.model.jobs.values())

    def has_finished(self) -> bool:
        return any(job.finished_at is not None for job in self.world.model.jobs.values())

    def has_room(self) -> bool:
        """Few jobs that much happens to show more than many that little happens to."""
        return sum(job.finished_at is None for job in self.world.model.jobs.values()) < UNFINISHED_JOBS_MAX


class Time(Machine):
    """Time goes by, backwards too, and the store is closed and opened."""

    @rule(seconds=draw.spans)
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule()
    def pass_time_until_the_next_job_is_due(self) -> None:
        self.world.pass_time(self.world.seconds_to_next_due())

    @rule()
    def tend(self) -> None:
        self.world.run(self.world.tend())

    @rule(set_back_seconds=st.sampled_from([0.0, 0.0, 3.0, 9.0]))
    def reopen(self, set_back_seconds: float) -> None:
        self.world.run(self.world.reopen(set_back_seconds=set_back_seconds))


class Work(Machine):
    """Workers take work and say what became of it."""

    @rule(worker=st.sampled_from(draw.WORKERS), types=draw.type_lists, limit=st.integers(1, 4))
    def claim(self, worker: str, types: list[str], limit: int) -> None:
        self.world.run(self.world.claim(worker, types, limit=limit))

    @rule(worker=st.sampled_from(draw.WORKERS))
    def claim_what_is_due_next(self, worker: str) -> None:
        self.world.pass_time(self.world.seconds_to_next_due())
        self.world.run(self.world.claim(worker, draw.TYPES, limit=3))

    @precondition(Machine.has_running)
    @rule(by_claim=st.booleans())
    def expire_all_leases(self, by_claim: bool) -> None:
        self.world.pass_time(LEASE_SECONDS)
        self.world.run(self.world.claim("sweeper", draw.TYPES, limit=1) if by_claim else self.world.tend())

    @precondition(Machine.has_running)
    @rule(by_claim=st.booleans())
    def expire_the_oldest_lease(self, by_claim: bool) -> None:
        self.world.pass_time(self.world.seconds_to_next_expiry())
        self.world.run(self.world.claim("sweeper", ["nothing"], limit=1) if by_claim else self.world.tend())

    @precondition(Machine.has_running)
    @rule(place=draw.places, progress=draw.progresses)
    def heartbeat(self, place: int, progress: Progress | None) -> None:
        job = self.job(place, JobStatus.RUNNING)
        self.world.run(self.world.heartbeat(job.id, job.fence, progress))

    @precondition(Machine.has_running)
    @rule(place=draw.places, progress=draw.progresses)
    def hand_over(self, place: int, progress: Progress | None) -> None:
        """A worker gives its job back, and another goes on in the same second."""
        job = self.job(place, JobStatus.RUNNING)
        self.world.run(self.world.heartbeat(job.id, job.fence, progress))
        self.world.run(self.world.settle(job.id, job.fence, Release()))
        self.world.run(self.world.claim("successor", [job.type], limit=1))
        self.world.run(self.world.heartbeat(*self.claimed(0), progress))

    @precondition(Machine.has_running)
    @rule(place=draw.places, outcome=draw.outcomes)
    def settle(self, place: int, outcome: Outcome) -> None:
        job = self.job(place, JobStatus.RUNNING)
        self.world.run(self.world.settle(job.id, job.fence, outcome))

    @precondition(Machine.has_claims)
    @rule(place=draw.places, outcome=draw.outcomes)
    def settle_whatever_became_of_it(self, place: int, outcome: Outcome) -> None:
        self.world.run(self.world.settle(*self.claimed(place), outcome))

    @precondition(Machine.has_claims)
    @rule(place=draw.places, change=draw.changes)
    def settle_again(self, place: int, change: dict[str, object]) -> None:
        """The same once more, and then almost the same."""
        job_id, fence = self.claimed(place)
        said = self.world.model.jobs[job_id].runs[fence].said
        if said is not None:
            self.world.run(self.world.settle(job_id, fence, said))
            self.world.run(self.world.settle(job_id, fence, draw.changed(said, change)))
        self.world.run(self.world.heartbeat(job_id, fence))

    @precondition(Machine.has_claims)
    @rule(said=st.lists(st.tuples(draw.places, draw.outcomes), min_size=2, max_size=4))
    def settle_many(self, said: list[tuple[int, Outcome]]) -> None:
        settles = []
        for place, outcome in said:
            job_id, fence = self.claimed(place)
            settles.append(Settle(job_id=job_id, fence=fence, outcome=outcome))
        self.world.run(self.world.settle_many(settles))

    @precondition(Machine.has_jobs)
    @rule(place=draw.places, off=st.sampled_from([-1, 1, 2**32]), outcome=draw.outcomes)
    def settle_with_a_fence_nobody_got(self, place: int, off: int, outcome: Outcome) -> None:
        job = self.job(place)
        if job.fence + off not in job.runs:
            self.world.run(self.world.settle(job.id, job.fence + off, outcome))
            self.world.run(self.world.heartbeat(job.id, job.fence + off))


class Finishing(Machine):
    """Workers take work and end it at once, or some of it."""

    @rule(ends=st.lists(draw.ends, min_size=1, max_size=4), types=draw.type_lists, more=st.integers(0, 1))
    def finish(self, ends: list[Outcome], types: list[str], more: int) -> None:
        before = len(self.world.claims)
        self.world.run(self.world.claim("finisher", types, limit=len(ends) + more))
        for (job_id, fence), outcome in zip(self.world.claims[before:], ends, strict=False):
            self.world.run(self.world.settle(job_id, fence, outcome))

    @precondition(Machine.has_running)
    @rule(place=draw.places, outcome=draw.ends)
    def end(self, place: int, outcome: Outcome) -> None:
        job = self.job(place, JobStatus.RUNNING)
        self.world.run(self.world.settle(job.id, job.fence, outcome))


class Steering(Machine):
    """People cancel, retry and reschedule."""

    @precondition(Machine.has_jobs)
    @rule(place=draw.places, running=st.booleans())
    def cancel(self, place: int, running: bool) -> None:
        job = self.job(place, *[JobStatus.RUNNING] * running)
        self.world.run(self.world.cancel(job.tenant, job.id))

    @precondition(Machine.has_finished)
    @rule(place=draw.places)
    def retry_at_once(self, place: int) -> None:
        job = self.job(place, *FINISHED)
        self.world.run(self.world.retry(job.tenant, job.id, reset=False, priority=None, attempts=None, run_at=None))

    @precondition(Machine.has_jobs)
    @rule(
        place=draw.places,
        finished=st.sampled_from([True, True, False]),
        reset=st.booleans(),
        priority=draw.priorities,
        attempts=draw.attempts,
        seconds=draw.seconds_from_now,
    )
    def retry(
        self,
        place: int,
        finished: bool,
        reset: bool,
        priority: int | None,
        attempts: int | None,
        seconds: float | None,
    ) -> None:
        job = self.job(place, *FINISHED * finished)
        self.world.run(
            self.world.retry(
                job.tenant, job.id, reset=reset, priority=priority, attempts=attempts, run_at=self.moment(seconds)
            )
        )

    @precondition(Machine.has_jobs)
    @rule(
        place=draw.places,
        queued=st.sampled_from([True, True, False]),
        priority=draw.priorities,
        attempts=draw.attempts,
        seconds=draw.seconds_from_now,
        tags=draw.tags,
    )
    def reschedule(
        self,
        place: int,
        queued: bool,
        priority: int | None,
        attempts: int | None,
        seconds: float | None,
        tags: list[str] | None,
    ) -> None:
        job = self.job(place, *[JobStatus.QUEUED] * queued)
        self.world.run(
            self.world.reschedule(
                job.tenant, job.id, priority=priority, attempts=attempts, run_at=self.moment(seconds), tags=tags
            )
        )


class Asking(Machine):
    """Jobs without keys are asked for."""

    @precondition(Machine.has_room)
    @rule(
        type=st.sampled_from(draw.TYPES),
        payload=draw.payloads,
        priority=draw.priorities,
        seconds=draw.seconds_from_now,
        attempts=draw.attempts,
        tags=draw.tags,
    )
    def enqueue(
        self,
        type: str,
        payload: bytes,
        priority: int | None,
        seconds: float | None,
        attempts: int | None,
        tags: list[str] | None,
    ) -> None:
        draft = Draft(
            tenant=self.tenant,
            type=type,
            payload=payload,
            priority=priority,
            run_at=self.moment(seconds),
            max_attempts=attempts,
            tags=tuple(tags or ()),
        )
        self.world.run(self.world.enqueue(draft))

    @precondition(Machine.has_room)
    @rule(count=st.integers(2, 5), priority=draw.priorities)
    def enqueue_many(self, count: int, priority: int | None) -> None:
        drafts = [Draft(tenant=self.tenant, type=draw.TYPES[n % 2], priority=priority) for n in range(count)]
        self.world.run(self.world.enqueue_many(drafts))

    @precondition(Machine.has_jobs)
    @precondition(Machine.has_room)
    @rule(
        places=st.lists(draw.places, min_size=1, max_size=3),
        unfinished=st.booleans(),
        on_dead=st.sampled_from(list(OnDead)),
        seconds=draw.seconds_from_now,
    )
    def enqueue_after(self, places: list[int], unfinished: bool, on_dead: OnDead, seconds: float | None) -> None:
        preferred = [status for status in JobStatus if status not in FINISHED] * unfinished
        parents = tuple(self.job(place, *preferred).id for place in places)
        draft = Draft(
            tenant=self.tenant, type=draw.TYPES[0], run_at=self.moment(seconds), after=parents, on_dead=on_dead
        )
        self.world.run(self.world.enqueue(draft))

    @rule(definition=draw.definitions)
    def define(self, definition: Definition) -> None:
        self.world.run(self.world.define(definition))


class Limiting(Machine):
    """Limits are set and lifted, types are paused and resumed."""

    @rule(definition=draw.limiting_definitions, whose=st.none() | st.integers(0, 1))
    def limit_a_type(self, definition: Definition, whose: int | None) -> None:
        tenant = None if whose is None else self.owner(whose)
        self.world.run(self.world.define(msgspec.structs.replace(definition, tenant=tenant)))

    @rule(limits=draw.tenant_limits, whose=st.integers(0, 1))
    def limit_a_tenant(self, limits: Limits, whose: int) -> None:
        self.world.run(self.world.limit(self.owner(whose), limits))

    @rule(type=st.sampled_from(draw.TYPES), whose=st.integers(0, 1))
    def pause(self, type: str, whose: int) -> None:
        self.world.run(self.world.pause(self.owner(whose), type))

    @rule(whose=st.integers(0, 1))
    def resume_all(self, whose: int) -> None:
        for type in draw.TYPES:
            self.world.run(self.world.resume(self.owner(whose), type))

    @precondition(lambda self: len(self.world.model.jobs) < JOBS_MAX)
    @rule(
        orders=st.lists(
            st.tuples(st.sampled_from(draw.TYPES), draw.keyed_payloads, draw.priorities), min_size=1, max_size=5
        ),
        whose=st.integers(0, 1),
    )
    def enqueue_some(self, orders: list[tuple[str, bytes, int | None]], whose: int) -> None:
        tenant = self.owner(whose)
        drafts = [Draft(tenant=tenant, type=type, payload=payload, priority=n) for type, payload, n in orders]
        self.world.run(self.world.enqueue_many(drafts))
