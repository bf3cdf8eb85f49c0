"""The rules of jobs in batches."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from ingot.jobs import JobStatus, OnDead
from tests.conformance.machines import strategies as draw
from tests.conformance.machines.job_model import Draft
from tests.conformance.machines.rules import Machine

ORDERS = st.fixed_dictionaries(
    {"type": st.sampled_from(draw.TYPES), "batch": draw.batches},
    optional={"idempotency_key": draw.keys, "dedupe_key": draw.keys},
)


class Batching(Machine):
    """Jobs are asked for under the names of batches."""

    @precondition(Machine.has_room)
    @rule(orders=st.lists(ORDERS, min_size=1, max_size=4), whose=st.integers(0, 1))
    def enqueue_in_batches(self, orders: list[dict[str, Any]], whose: int) -> None:
        tenant = self.owner(whose)
        self.world.run(self.world.enqueue_many([Draft(tenant=tenant, **order) for order in orders]))

    @precondition(Machine.has_jobs)
    @precondition(Machine.has_room)
    @rule(place=draw.places, ended=st.booleans(), on_dead=st.sampled_from(list(OnDead)), batch=draw.batches)
    def enqueue_after(self, place: int, ended: bool, on_dead: OnDead, batch: str | None) -> None:
        bad_ends = (JobStatus.DEAD, JobStatus.CANCELED)
        parent = self.job(place, *bad_ends * ended)
        draft = Draft(tenant=parent.tenant, type="noop", after=(parent.id,), on_dead=on_dead, batch=batch)
        self.world.run(self.world.enqueue(draft))
