"""The rules of how long jobs are kept, and what the model says of it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from ingot.identity import Limits
from ingot.jobs import Definition, Done, HistoryEntry, OnDead, RetentionPreview
from ingot.kernel.clock import MICROS, to_datetime
from tests.conformance.machines import strategies as draw
from tests.conformance.machines.checked_store import World
from tests.conformance.machines.job_model import Draft, Record
from tests.conformance.machines.model import Model
from tests.conformance.machines.rules import FINISHED, Machine

ROUNDS_MAX = 1000
ORDERS = st.fixed_dictionaries(
    {"type": st.sampled_from(draw.TYPES)},
    optional={
        "payload": draw.few_payloads,
        "idempotency_key": draw.keys,
        "dedupe_key": draw.keys,
        "batch": draw.batches,
        "tags": st.just(("red",)),
    },
)


def kept_seconds(model: Model, job: Record) -> float | None:
    """How long a finished job is kept; `None` is for ever."""
    own = model.definition(job.tenant, job.type).retention_seconds
    return model.limits.get(job.tenant, Limits()).retention_seconds if own is None else own


def doomed(model: Model, now: int) -> list[Record]:
    """The jobs that have been kept long enough, longest finished first."""
    found = []
    for job in model.jobs.values():
        seconds = kept_seconds(model, job)
        if job.finished_at is not None and seconds is not None and job.finished_at + round(seconds * MICROS) <= now:
            found.append(job)
    return sorted(found, key=lambda job: job.finished_at or 0)


async def preview(world: World, tenant: str) -> None:
    """What would be removed now is told by type."""
    kinds: defaultdict[str, list[Record]] = defaultdict(list)
    for job in doomed(world.model, world.model.time(world.clock.micros())):
        if job.tenant == tenant:
            kinds[job.type].append(job)
    assert list(await world.bench.jobs.preview_retention(tenant)) == [
        RetentionPreview(type=type, jobs=len(jobs), oldest_finished_at=to_datetime(jobs[0].finished_at or 0))
        for type, jobs in sorted(kinds.items())
    ]


async def collect(world: World, *, limit: int) -> bool:
    """Remove some of what is due, of a type from the oldest on; answers whether there is more."""
    model = world.model
    world.command()
    due = doomed(model, model.now)
    keeping = {job.id for job in due if model.definition(job.tenant, job.type).keep_history}
    answer = await world.bench.jobs.collect(limit)
    there = set()
    for tenant in model.tenants:
        there |= {job.id for job in (await world.bench.jobs.list(tenant, limit=1000)).items}
    gone = [job for job in due if job.id not in there]
    left = [job for job in due if job.id in there]
    assert there == model.jobs.keys() - {job.id for job in gone}
    assert answer.removed == len(gone) <= limit
    assert answer.kept == len(keeping & {job.id for job in gone})
    assert answer.more or not left
    for kind in {(job.tenant, job.type) for job in left}:
        went, stayed = (
            [job.finished_at or 0 for job in jobs if (job.tenant, job.type) == kind and not job.ended_before]
            for jobs in (gone, left)
        )
        assert not stayed or max(went, default=0) <= min(stayed)
    for job in gone:
        model.remove(job)
    world.claims = [claim for claim in world.claims if claim[0] in model.jobs]
    return answer.more


async def read_history(world: World, tenant: str, type: str | None, *, limit: int) -> None:
    """All pages of the history, joined, are the entries that stayed, last finished first."""
    found: list[HistoryEntry] = []
    cursor: str | None = None
    while True:
        page = await world.bench.jobs.history(tenant, type=type, cursor=cursor, limit=limit)
        assert len(page.items) <= limit
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    wanted = [entry for entry in world.model.history if entry.tenant == tenant and type in (None, entry.type)]
    assert found == sorted(wanted, key=lambda entry: (entry.finished_at, entry.id), reverse=True)


class Keeping(Machine):
    """Jobs are kept for a while, removed, and asked for afterwards."""

    definitions = (Definition(type="noop", retention_seconds=60.0, keep_history=True),)

    @rule(definition=draw.keeping_definitions, whose=st.none() | st.integers(0, 1))
    def define(self, definition: Definition, whose: int | None) -> None:
        tenant = None if whose is None else self.owner(whose)
        self.world.run(self.world.define(msgspec.structs.replace(definition, tenant=tenant)))

    @rule(seconds=draw.retentions, whose=st.integers(0, 1))
    def limit(self, seconds: float | None, whose: int) -> None:
        self.world.run(self.world.limit(self.owner(whose), Limits(retention_seconds=seconds)))

    @precondition(Machine.has_room)
    @rule(orders=st.lists(ORDERS, min_size=1, max_size=3), whose=st.integers(0, 1))
    def enqueue(self, orders: list[dict[str, Any]], whose: int) -> None:
        tenant = self.owner(whose)
        self.world.run(self.world.enqueue_many([Draft(tenant=tenant, **order) for order in orders]))

    @precondition(Machine.has_jobs)
    @precondition(Machine.has_room)
    @rule(
        places=st.lists(draw.places, min_size=1, max_size=2), ended=st.booleans(), on_dead=st.sampled_from(list(OnDead))
    )
    def enqueue_after(self, places: list[int], ended: bool, on_dead: OnDead) -> None:
        parents = [self.job(place, *FINISHED * ended) for place in places]
        after = tuple(parent.id for parent in parents)
        draft = Draft(tenant=parents[0].tenant, type="fragile", after=after, on_dead=on_dead)
        self.world.run(self.world.enqueue(draft))

    @rule(limit=st.integers(1, 3))
    def collect_some(self, limit: int) -> None:
        for tenant in self.world.model.tenants:
            self.world.run(preview(self.world, tenant))
        self.world.run(collect(self.world, limit=limit))

    @rule(limit=st.sampled_from([1, 2, 1000]), seconds=draw.spans)
    def collect_all(self, limit: int, seconds: float) -> None:
        self.world.pass_time(seconds)
        for _ in range(ROUNDS_MAX):
            if not self.world.run(collect(self.world, limit=limit)):
                break
        for tenant in self.world.model.tenants:
            self.world.run(preview(self.world, tenant))
            self.world.run(read_history(self.world, tenant, None, limit=1000))

    @precondition(Machine.has_finished)
    @rule(place=draw.places, seconds=draw.spans)
    def end_again(self, place: int, seconds: float) -> None:
        """What ended twice is kept from its last end on."""
        job = self.job(place, *FINISHED)
        self.world.pass_time(seconds)
        self.world.run(self.world.retry(job.tenant, job.id, reset=True, priority=1, attempts=None, run_at=None))
        self.world.run(self.world.cancel(job.tenant, job.id))
        self.world.run(collect(self.world, limit=1000))

    @rule(whose=st.integers(0, 1), type=st.none() | st.sampled_from(draw.TYPES), limit=st.integers(1, 3))
    def read_history(self, whose: int, type: str | None, limit: int) -> None:
        self.world.run(read_history(self.world, self.owner(whose), type, limit=limit))

    @precondition(lambda self: bool(self.world.model.removed))
    @rule(place=draw.places)
    def ask_for_what_was_removed(self, place: int) -> None:
        removed = self.world.model.removed
        job = removed[-1 - place % len(removed)]
        nothing = {"priority": None, "attempts": None, "run_at": None}
        self.world.run(self.world.cancel(job.tenant, job.id))
        self.world.run(self.world.retry(job.tenant, job.id, reset=True, **nothing))
        self.world.run(self.world.heartbeat(job.id, job.fence))
        self.world.run(self.world.settle(job.id, job.fence, Done()))
        self.world.run(self.world.enqueue(Draft(tenant=job.tenant, type="noop", after=(job.id,))))
