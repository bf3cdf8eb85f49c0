"""Jobs of all kinds, filters of all kinds, and which fit which."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import combinations, product
from typing import Any, Final

import msgspec

from ingot.jobs import Job, JobStatus, NewJob, Source
from ingot.jobs.job_options import new_job
from tests.factories import Bench

START: Final = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=180)  # Where the clock of a bench stands.
STEP: Final = timedelta(seconds=5)
STATES: Final = [JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED]
CHOICES: Final[dict[str, list[Any]]] = {
    "status": STATES,
    "type": ["a", "b", "nothing"],
    "tag": ["red", "blue", "nothing"],
    "source": [Source.MANUAL, Source.SCHEDULE, Source.DOCUMENT],
    "created_after": [START + 7 * STEP, START + 1000 * STEP],
    "created_before": [START + 21 * STEP, START],
}


def some_filters() -> Iterator[dict[str, Any]]:
    """Every filter alone, every pair, and some of more."""
    for many in (1, 2):
        for names in combinations(CHOICES, many):
            for values in product(*(CHOICES[name] for name in names)):
                yield dict(zip(names, values, strict=True))
    chance = random.Random(7)
    for _ in range(60):
        names = tuple(chance.sample(list(CHOICES), chance.randint(3, 6)))
        yield {name: chance.choice(CHOICES[name]) for name in names}


def fits(job: Job, filters: dict[str, Any]) -> bool:
    """What the filters mean."""
    told = {"status": job.status, "type": job.type, "source": job.source}
    return (
        all(filters.get(name) in (None, value) for name, value in told.items())
        and filters.get("tag") in (None, *job.tags)
        and ("created_after" not in filters or job.created_at >= filters["created_after"])
        and ("created_before" not in filters or job.created_at < filters["created_before"])
    )


async def read_all(bench: Bench, tenant: str | None = None, **options: Any) -> list[Job]:
    """All pages joined."""
    jobs: list[Job] = []
    cursor = None
    for _ in range(1000):
        page = await bench.jobs.list(tenant or bench.tenant, cursor=cursor, **options)
        assert len(page.items) <= options.get("limit", 50)
        jobs += page.items
        cursor = page.next_cursor
        if cursor is None:
            return jobs
    raise AssertionError("the list has no end")


def made_at(order: NewJob, moment: datetime) -> NewJob:
    """The order with an id that tells another time."""
    millis = round(moment.timestamp() * 1000)
    return msgspec.structs.replace(order, id=f"{millis >> 16:08x}-{millis & 0xFFFF:04x}-7{order.id[15:]}")


async def lead(bench: Bench, order: NewJob, status: JobStatus) -> None:
    """Enqueue a job and lead it to a status; no other of its type waits."""
    (made,) = await bench.jobs.enqueue_many([order])
    if status is JobStatus.CANCELED and order.priority == 1:  # Canceled while it runs.
        (claim,) = await bench.jobs.claim("worker", [order.type], tenant=order.tenant)
        await bench.jobs.cancel(order.tenant, made.job.id)
        await bench.jobs.fail(claim, "stopped")
    elif status is JobStatus.CANCELED:
        await bench.jobs.cancel(order.tenant, made.job.id)
    elif status is not JobStatus.QUEUED:
        (claim,) = await bench.jobs.claim("worker", [order.type], tenant=order.tenant)
        assert claim.job.id == made.job.id
        if status is JobStatus.SUCCEEDED:
            await bench.jobs.complete(claim)
        elif status is JobStatus.DEAD:
            await bench.jobs.fail(claim, "broken", retry=False)


async def fill(bench: Bench, *, ids: str) -> None:
    """Jobs of all kinds, one at a step of the clock, and as many of another tenant."""
    other = (await bench.tenants.create("other")).id
    chance = random.Random(ids)
    for n in range(30):
        status = STATES[n % 5]
        options: dict[str, Any] = {
            "tags": chance.sample(["red", "blue", "green"], chance.randint(0, 3)),
            "source": chance.choice([Source.MANUAL, Source.SCHEDULE]),
            "delay": 3600 if status is JobStatus.QUEUED else 0,
            "priority": chance.choice([1, 3]),
        }
        for tenant in (bench.tenant, other):
            order = new_job(tenant, chance.choice("ab"), n, **options)
            if ids == "right" or (ids == "mixed" and n % 2):
                drift = chance.choice([0, 1, 59, 3599] if ids == "right" else [2, 61, 3601]) * chance.choice([-1, 1])
                order = made_at(order, bench.clock.now() + timedelta(seconds=drift))
            await lead(bench, order, status)
        bench.clock.advance(seconds=STEP.total_seconds())
