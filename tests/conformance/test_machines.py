"""Random lives of jobs: a store answers any sequence of calls as its model does."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from ingot.jobs import JobStatus, Outcome
from ingot.kernel.ids import new_id
from tests.campaigns import IS_WHOLE
from tests.conformance.machines import strategies as draw
from tests.conformance.machines.batch_rules import Batching
from tests.conformance.machines.explain_rules import Explaining
from tests.conformance.machines.job_model import Draft
from tests.conformance.machines.list_rules import Looking
from tests.conformance.machines.retention_rules import Keeping
from tests.conformance.machines.reuse_rules import Reusing
from tests.conformance.machines.rules import Asking, Finishing, Limiting, Machine, Steering, Time, Work
from tests.mutants.plugin import COPY_VARIABLE

# An example on PostgreSQL takes about five times as long.
STEPS = 50
if IS_WHOLE:
    EXAMPLES = {"sqlite": 100, "postgres": 25}
elif COPY_VARIABLE in os.environ:  # Enough examples to find a planted bug.
    EXAMPLES = {"sqlite": 60, "postgres": 15}
else:
    EXAMPLES = {"sqlite": 8, "postgres": 3}
SOAKS = settings().max_examples > settings.get_profile("ingot").max_examples

# Runs with more examples (`make soak`, `--hypothesis-profile soak`) have no time limit.
pytestmark = [pytest.mark.long, *[pytest.mark.timeout(0)] * (SOAKS or IS_WHOLE)]

SLUGS = ("acme", "globex")


class Life(Asking, Work, Steering, Time):
    """Jobs of one tenant under all kinds of calls."""


class Keys(Work, Steering):
    """Jobs with keys, including retries that need a key which another job holds."""

    @staticmethod
    def _draft(tenant: str, type: str, payload: bytes, keys: tuple[str | None, str | None]) -> Draft:
        idempotency_key, dedupe_key = keys
        return Draft(tenant=tenant, type=type, payload=payload, idempotency_key=idempotency_key, dedupe_key=dedupe_key)

    @precondition(Machine.has_room)
    @rule(type=st.sampled_from(draw.TYPES), payload=draw.payloads, keys=st.tuples(draw.keys, draw.keys))
    def enqueue(self, type: str, payload: bytes, keys: tuple[str | None, str | None]) -> None:
        self.world.run(self.world.enqueue(self._draft(self.tenant, type, payload, keys)))

    @precondition(Machine.has_room)
    @rule(
        orders=st.lists(
            st.tuples(st.sampled_from(draw.TYPES), draw.payloads, st.tuples(draw.keys, draw.keys)),
            min_size=2,
            max_size=4,
        )
    )
    def enqueue_many(self, orders: list[tuple[str, bytes, tuple[str | None, str | None]]]) -> None:
        self.world.run(self.world.enqueue_many([self._draft(self.tenant, *order) for order in orders]))

    @rule()
    def reopen(self) -> None:
        self.world.run(self.world.reopen(set_back_seconds=0))


class ManyTenants(Work, Steering, Time):
    """Jobs of several tenants with the same types and keys: no tenant can see, claim or stop jobs of another."""

    slugs = SLUGS

    @precondition(Machine.has_room)
    @rule(
        whose=st.integers(0, len(SLUGS)),
        type=st.sampled_from(draw.TYPES),
        priority=draw.priorities,
        seconds=draw.seconds_from_now,
        keys=st.tuples(draw.keys, draw.keys),
    )
    def enqueue(
        self, whose: int, type: str, priority: int | None, seconds: float | None, keys: tuple[str | None, str | None]
    ) -> None:
        draft = Draft(
            tenant=self.owner(whose),
            type=type,
            priority=priority,
            run_at=self.moment(seconds),
            idempotency_key=keys[0],
            dedupe_key=keys[1],
        )
        self.world.run(self.world.enqueue(draft))

    @precondition(Machine.has_room)
    @rule(count=st.integers(2, 4), other=st.sampled_from([False, False, False, True]))
    def enqueue_for_all(self, count: int, other: bool) -> None:
        drafts = [Draft(tenant=self.owner(n), type=draw.TYPES[n % 2]) for n in range(count)]
        drafts += [Draft(tenant=new_id(), type="noop")] * other
        self.world.run(self.world.enqueue_many(drafts))

    @rule(
        worker=st.sampled_from(draw.WORKERS),
        types=draw.type_lists,
        limit=st.integers(1, 5),
        whose=st.none() | st.integers(0, len(SLUGS)),
    )
    def claim_for(self, worker: str, types: list[str], limit: int, whose: int | None) -> None:
        tenant = None if whose is None else self.owner(whose)
        self.world.run(self.world.claim(worker, types, limit=limit, tenant=tenant))

    @precondition(Machine.has_running)
    @rule(
        place=draw.places,
        outcome=draw.outcomes,
        whose=st.none() | st.integers(0, len(SLUGS)),
    )
    def settle_as_a_tenant(self, place: int, outcome: Outcome, whose: int | None) -> None:
        job = self.job(place, JobStatus.RUNNING)
        tenant = None if whose is None else self.owner(whose)
        self.world.run(self.world.heartbeat(job.id, job.fence, tenant=tenant))
        self.world.run(self.world.settle(job.id, job.fence, outcome, tenant))

    @precondition(Machine.has_jobs)
    @rule(place=draw.places, whose=st.integers(0, len(SLUGS)))
    def act_on_another_tenants_job(self, place: int, whose: int) -> None:
        job = self.job(place)
        other = self.owner(whose)
        if other != job.tenant:
            nothing = {"priority": None, "attempts": None, "run_at": None}
            self.world.run(self.world.cancel(other, job.id))
            self.world.run(self.world.retry(other, job.id, reset=True, **nothing))
            self.world.run(self.world.reschedule(other, job.id, tags=["mine"], **nothing))


class Limited(Work, Steering, Time, Limiting):
    """Jobs of two tenants under changing limits, caps and pauses."""

    slugs = SLUGS[:1]


class Batched(Batching, Finishing, Work, Steering, Time):
    """Jobs of two tenants in batches of the same names; some depend on others, are refused or exist already."""

    slugs = SLUGS[:1]


class Reused(Reusing, Finishing, Steering, Time):
    """Jobs of two tenants that are requested repeatedly, under changing definitions."""

    slugs = SLUGS[:1]


class Listed(Looking, Finishing, Work, Steering, Time):
    """Jobs of two tenants from all sources, with changing tags, listed by all filters."""

    slugs = SLUGS[:1]


class Kept(Keeping, Finishing, Steering, Time):
    """Jobs of two tenants with retention, and references to removed jobs."""

    slugs = SLUGS[:1]


class Explained(Explaining, Limiting, Work, Steering, Time):
    """Jobs of two tenants that wait for time, parents, capacity, workers and other jobs."""

    slugs = SLUGS[:1]


MACHINES = [Life, Keys, ManyTenants, Limited, Batched, Reused, Listed, Kept, Explained]


@pytest.mark.parametrize("machine", MACHINES)
def test_a_store_behaves_like_its_model(machine: type[Machine], engine: str) -> None:
    machine = type(machine.__name__, (machine,), {"engine": engine})
    examples = settings().max_examples if SOAKS else EXAMPLES[engine]
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=STEPS, report_multiple_bugs=False)
    )
