"""The limit on job types: of how many types a tenant can have jobs."""

from __future__ import annotations

import asyncio

import pytest

from ingot.identity import Limits
from ingot.identity.model import JOB_TYPES_DEFAULT
from ingot.jobs import Definition, JobStatus, NewJob, TypeLimitExceeded
from ingot.jobs.job_options import new_job
from tests.conformance.snapshots import refuses
from tests.factories import Bench


async def set_limit(bench: Bench, types: int | None) -> None:
    await bench.tenants.change(bench.tenant, limits=Limits(max_job_types=types))


def orders(bench: Bench, *types: str) -> list[NewJob]:
    return [new_job(bench.tenant, type) for type in types]


async def test_a_job_of_a_type_beyond_the_limit_is_refused(bench: Bench) -> None:
    await set_limit(bench, 2)
    await bench.jobs.enqueue_many(orders(bench, "a", "b"))
    async with refuses(bench, TypeLimitExceeded):
        await bench.make_job("c")
    await bench.make_job("a")
    other = await bench.tenants.create("other")
    await bench.make_job("c", tenant=other.id)


async def test_a_call_that_would_exceed_the_limit_is_refused_as_a_whole(bench: Bench) -> None:
    await set_limit(bench, 2)
    await bench.make_job("a")
    async with refuses(bench, TypeLimitExceeded):
        await bench.jobs.enqueue_many(orders(bench, "a", "b", "c"))
    await bench.jobs.enqueue_many(orders(bench, "a", "d"))


async def test_a_limit_of_zero_refuses_every_job(bench: Bench) -> None:
    await set_limit(bench, 0)
    async with refuses(bench, TypeLimitExceeded):
        await bench.make_job()


async def test_concurrent_calls_do_not_exceed_the_limit_together(bench: Bench) -> None:
    await set_limit(bench, 3)
    calls = [bench.jobs.enqueue_many(orders(bench, f"type-{n}", "shared")) for n in range(12)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers].count(TypeLimitExceeded) == 10
    assert len(await bench.jobs.counts(bench.tenant)) == 3


async def test_existing_types_stay_usable_when_the_limit_is_lowered(bench: Bench) -> None:
    await bench.jobs.enqueue_many(orders(bench, "a", "b", "c"))
    await set_limit(bench, 1)
    await bench.make_job("b")
    async with refuses(bench, TypeLimitExceeded):
        await bench.make_job("d")


async def test_a_type_counts_until_its_last_job_is_removed(bench: Bench) -> None:
    await set_limit(bench, 1)
    await bench.jobs.define(Definition(type="a", retention_seconds=10))
    job = await bench.make_job_in(JobStatus.SUCCEEDED, "a")
    await bench.make_job_in(JobStatus.DEAD, "a")
    bench.clock.advance(seconds=5)
    running = await bench.make_claim("a")
    bench.clock.advance(seconds=6)
    assert (await bench.jobs.collect(10)).removed == 2
    async with refuses(bench, TypeLimitExceeded):
        await bench.make_job("b")
    await bench.jobs.complete(running)
    bench.clock.advance(seconds=11)
    assert (await bench.jobs.collect(10)).removed == 1
    await bench.make_job("b")
    async with refuses(bench, TypeLimitExceeded):
        await bench.make_job("a")
    assert job.type == "a"


async def test_a_known_idempotency_key_is_answered_at_the_limit(bench: Bench) -> None:
    await set_limit(bench, 1)
    first = await bench.jobs.enqueue(bench.tenant, "a", idempotency_key="k")
    again = await bench.jobs.enqueue(bench.tenant, "a", idempotency_key="k")
    assert (again.job.id, again.created) == (first.job.id, False)
    async with refuses(bench, TypeLimitExceeded):
        await bench.jobs.enqueue(bench.tenant, "b", idempotency_key="k")


@pytest.mark.parametrize("limits", [None, Limits(max_job_types=None)])
async def test_the_default_limit_is_ten_thousand_types(bench: Bench, limits: Limits | None) -> None:
    if limits is not None:
        await bench.tenants.change(bench.tenant, limits=limits)
    names = [f"type-{n}" for n in range(JOB_TYPES_DEFAULT)]
    for start in range(0, len(names), 5000):
        await bench.jobs.enqueue_many(orders(bench, *names[start : start + 5000]))
    with pytest.raises(TypeLimitExceeded):
        await bench.make_job("another")
    await bench.make_job("type-7")
    await set_limit(bench, JOB_TYPES_DEFAULT + 1)
    await bench.make_job("one-more")
