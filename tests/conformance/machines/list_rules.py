"""The rules of looking for jobs: lists by all that can be said of them, in pages."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from ingot.jobs import Job, Source
from ingot.kernel.clock import to_datetime
from tests.conformance.machines import strategies as draw
from tests.conformance.machines.checked_store import World
from tests.conformance.machines.job_model import Draft, Record
from tests.conformance.machines.rules import JOBS_MAX, Machine

SOURCES = st.sampled_from([Source.MANUAL, Source.EVENT, Source.SCHEDULE])
ORDERS = st.fixed_dictionaries(
    {"type": st.sampled_from(draw.TYPES)},
    optional={"source": SOURCES, "tags": st.lists(draw.tag, unique=True).map(tuple), "priority": draw.priorities},
)
NAMES = st.sets(st.sampled_from(["status", "type", "tag", "source", "created_after", "created_before"]), max_size=3)
ASIDE = st.sampled_from([0, 0, 1, -1])  # So many microseconds beside the time when a job was made.


def filters_like(job: Record, names: set[str], aside: int) -> dict[str, Any]:
    """What can be said of a job, as far as it is named; whether the job itself fits, its time decides."""
    made = to_datetime(job.created_at + aside)
    told: dict[str, Any] = {
        "status": job.status,
        "type": job.type,
        "source": job.source,
        "created_after": made,
        "created_before": made,
    }
    told |= {"tag": job.tags[0]} if job.tags else {}
    return {name: told[name] for name in sorted(names & told.keys())}


def fits(job: Record, where: dict[str, Any]) -> bool:
    """Whether a job belongs in a list."""
    made = to_datetime(job.created_at)
    return (
        where.get("status", job.status) is job.status
        and where.get("type", job.type) == job.type
        and where.get("source", job.source) is job.source
        and ("tag" not in where or where["tag"] in job.tags)
        and ("created_after" not in where or where["created_after"] <= made)
        and ("created_before" not in where or made < where["created_before"])
    )


async def look(world: World, tenant: str, where: dict[str, Any], *, limit: int) -> None:
    """All pages of a list, joined, are the jobs that fit, newest first."""
    found: list[Job] = []
    cursor: str | None = None
    while True:
        page = await world.bench.jobs.list(tenant, cursor=cursor, limit=limit, **where)
        assert len(page.items) <= limit
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    wanted = [job for job in world.model.jobs.values() if job.tenant == tenant and fits(job, where)]
    assert found == [job.job() for job in sorted(wanted, key=lambda job: job.id, reverse=True)]


class Looking(Machine):
    """Jobs that differ in all that lists can ask for, and lists of them."""

    @precondition(lambda self: len(self.world.model.jobs) < JOBS_MAX)
    @rule(orders=st.lists(ORDERS, min_size=1, max_size=4), whose=st.integers(0, 1))
    def enqueue(self, orders: list[dict[str, Any]], whose: int) -> None:
        tenant = self.owner(whose)
        self.world.run(self.world.enqueue_many([Draft(tenant=tenant, **order) for order in orders]))

    @precondition(Machine.has_jobs)
    @precondition(lambda self: len(self.world.model.jobs) < JOBS_MAX)
    @rule(place=draw.places, order=ORDERS)
    def enqueue_after(self, place: int, order: dict[str, Any]) -> None:
        parent = self.job(place)
        self.world.run(self.world.enqueue(Draft(tenant=parent.tenant, after=(parent.id,), **order)))

    @precondition(Machine.has_jobs)
    @rule(
        likes=st.lists(st.tuples(draw.places, NAMES, ASIDE), min_size=3, max_size=6),
        limit=st.integers(1, 3),
        stranger=st.sampled_from([False, False, True]),
    )
    def look(self, likes: list[tuple[int, set[str], int]], limit: int, stranger: bool) -> None:
        for place, names, aside in likes:
            job = self.job(place)
            tenant = self.owner(place) if stranger else job.tenant
            self.world.run(look(self.world, tenant, filters_like(job, names, aside), limit=limit))
