"""The rules of work that is not done twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import rule

from ingot.identity import Limits
from ingot.jobs import Definition
from tests.conformance.machines import strategies as draw
from tests.conformance.machines.job_model import Draft
from tests.conformance.machines.rules import Machine

ORDERS = st.fixed_dictionaries(
    {"type": st.sampled_from(draw.TYPES), "payload": draw.few_payloads},
    optional={
        "inputs": draw.few_inputs,
        "force": st.booleans(),
        "idempotency_key": draw.keys,
        "dedupe_key": draw.keys,
        "batch": draw.batches,
    },
)


class Reusing(Machine):
    """The same work is asked for many times."""

    definitions = tuple(Definition(type=type, reuse=True) for type in draw.TYPES)

    @rule(definition=draw.reusing_definitions, whose=st.none() | st.integers(0, 1))
    def define(self, definition: Definition, whose: int | None) -> None:
        tenant = None if whose is None else self.owner(whose)
        self.world.run(self.world.define(msgspec.structs.replace(definition, tenant=tenant)))

    @rule(most=st.none() | st.integers(0, 6), whose=st.integers(0, 1))
    def cap(self, most: int | None, whose: int) -> None:
        self.world.run(self.world.limit(self.owner(whose), Limits(max_unfinished_jobs=most)))

    @rule(orders=st.lists(ORDERS, min_size=1, max_size=4), whose=st.integers(0, 1))
    def ask(self, orders: list[dict[str, Any]], whose: int) -> None:
        tenant = self.owner(whose)
        self.world.run(self.world.enqueue_many([Draft(tenant=tenant, **order) for order in orders]))

    @rule(
        order=ORDERS,
        whose=st.integers(0, 1),
        forces=st.lists(st.booleans(), min_size=2, max_size=3),
        at_once=st.booleans(),
    )
    def ask_for_the_same(self, order: dict[str, Any], whose: int, forces: list[bool], at_once: bool) -> None:
        drafts = [Draft(tenant=self.owner(whose), **{**order, "force": force}) for force in forces]
        for part in [drafts] if at_once else [[draft] for draft in drafts]:
            self.world.run(self.world.enqueue_many(part))
        self.world.run(self.world.enqueue(replace(drafts[0], force=False)))
