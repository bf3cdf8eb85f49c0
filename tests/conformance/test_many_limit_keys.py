"""Hundreds of limit keys of one tenant: their jobs start in strict order, and none is skipped."""

from __future__ import annotations

import asyncio
import random

import pytest

from ingot.identity import Limits
from ingot.jobs import Definition, Job
from ingot.jobs.job_options import new_job
from ingot.jobs.model import NewJob
from tests.factories import Bench

KEYS = 400
CLAIMERS = 8


def sort_key(job: Job) -> tuple[int, str]:
    return job.priority, job.id


def order(bench: Bench, key: int, *, type: str = "noop", priority: int = 3) -> NewJob:
    return new_job(bench.tenant, type, {"key": key}, priority=priority)


async def make_jobs(bench: Bench, *, jobs: int = KEYS) -> list[Job]:
    """Make jobs of many keys and random priorities, and return them in the order in which they start."""
    chance = random.Random(jobs)
    keys = chance.sample(range(jobs), jobs)
    made = await bench.jobs.enqueue_many([order(bench, key % KEYS, priority=chance.randint(1, 5)) for key in keys])
    return sorted((one.job for one in made), key=sort_key)


@pytest.fixture(autouse=True)
async def limit_each_key_to_one(bench: Bench) -> None:
    await bench.jobs.define(Definition(type="noop", limit_key="{key}", max_running_per_key=1))


@pytest.mark.parametrize("claim_limit", [1, 7, 100])
async def test_the_first_jobs_of_all_keys_start_in_order(bench: Bench, claim_limit: int) -> None:
    jobs = await make_jobs(bench)
    for start in range(0, 5 * claim_limit, claim_limit):
        claims = await bench.jobs.claim("worker", ["noop"], limit=claim_limit)
        assert [claim.job.id for claim in claims] == [job.id for job in jobs[start : start + claim_limit]][
            : len(claims)
        ]
        assert len(claims) == min(claim_limit, max(0, KEYS - start))


async def test_one_job_of_each_key_starts_at_a_time(bench: Bench) -> None:
    await make_jobs(bench, jobs=2 * KEYS)
    claims = await bench.jobs.claim("worker", ["noop"], limit=1000)
    assert len({claim.job.read()["key"] for claim in claims}) == len(claims) == KEYS
    assert await bench.jobs.claim("worker", ["noop"], limit=1000) == []
    for claim in claims[: KEYS // 2]:
        await bench.jobs.complete(claim)
    assert len(await bench.jobs.claim("worker", ["noop"], limit=1000)) == KEYS // 2


async def test_an_urgent_job_of_a_new_key_starts_before_many_known_keys(bench: Bench) -> None:
    await make_jobs(bench)
    await bench.jobs.claim("worker", ["noop"], limit=5)
    urgent = [(await bench.jobs.enqueue_many([order(bench, key, priority=1)]))[0].job for key in (KEYS, KEYS + 1)]
    first = [claim.job.id for claim in await bench.jobs.claim("worker", ["noop"], limit=200)]
    after = [claim.job.priority for claim in await bench.jobs.claim("worker", ["noop"], limit=200)]
    assert {job.id for job in urgent} <= set(first)
    assert min(after) > 1


async def test_many_keys_without_capacity_are_skipped(bench: Bench) -> None:
    jobs = await make_jobs(bench)
    running = [claim.job.read()["key"] for claim in await bench.jobs.claim("worker", ["noop"], limit=200)]
    await bench.jobs.enqueue_many([order(bench, key, priority=1) for key in running])
    for start in (200, 205):
        claims = await bench.jobs.claim("worker", ["noop"], limit=5)
        assert [claim.job.id for claim in claims] == [job.id for job in jobs[start : start + 5]]


async def make_jobs_of_keys(bench: Bench, *parts: tuple[str, int, int]) -> list[Job]:
    """Make one job for each key: each part is a name, a number of keys and a priority."""
    orders = [
        new_job(bench.tenant, "noop", {"key": f"{name}{number}"}, priority=priority)
        for name, keys, priority in parts
        for number in range(keys)
    ]
    return [made.job for made in await bench.jobs.enqueue_many(orders)]


async def priorities(bench: Bench, limit: int) -> list[int]:
    return [claim.job.priority for claim in await bench.jobs.claim("worker", ["noop"], limit=limit)]


async def test_a_later_job_of_a_free_key_waits_for_earlier_jobs_of_other_keys(bench: Bench) -> None:
    await bench.jobs.define(Definition(type="noop", limit_key="{key}", max_running_per_key=2))
    await make_jobs_of_keys(bench, ("full", 63, 1), ("full", 63, 1))
    assert len(await priorities(bench, 126)) == 126
    await make_jobs_of_keys(bench, ("full", 63, 1), ("a", 1, 1), ("a", 1, 5), ("b", 100, 3))
    assert await priorities(bench, 2) == [1, 3]


async def test_canceled_jobs_do_not_move_later_jobs_of_their_keys_forward(bench: Bench) -> None:
    await bench.jobs.define(Definition(type="noop", limit_key="{key}"))
    first = await make_jobs_of_keys(bench, ("a", 70, 1))
    await make_jobs_of_keys(bench, ("a", 70, 5), ("b", 100, 3), ("c", 64, 1))
    assert await priorities(bench, 1) == [1]
    for job in first[1:]:
        await bench.jobs.cancel(bench.tenant, job.id)
    assert await priorities(bench, 64) + await priorities(bench, 64) == [1] * 64 + [3] * 64


async def test_a_large_claim_leaves_the_remaining_jobs_in_order(bench: Bench) -> None:
    await bench.jobs.define(Definition(type="noop", limit_key="{key}"))
    await make_jobs_of_keys(bench, ("b", 64, 1), ("a", 136, 1), ("a", 136, 5), ("b", 64, 3))
    assert await priorities(bench, 1) + await priorities(bench, 199) == [1] * 200
    assert await priorities(bench, 10) == [3] * 10


@pytest.mark.parametrize("kind", ["tenant", "type", "paused"])
async def test_a_waiting_claim_is_woken_when_many_keys_get_capacity(bench: Bench, kind: str) -> None:
    await make_jobs(bench)
    if kind == "tenant":
        await bench.tenants.change(bench.tenant, limits=Limits(max_running_jobs=3))
    elif kind == "type":
        await bench.jobs.define(Definition(type="noop", limit_key="{key}", max_running_per_key=1, max_running=3))
    running = await bench.jobs.claim("worker", ["noop"], limit=3)
    if kind == "paused":
        await bench.jobs.pause(bench.tenant, "noop")
    waiting = asyncio.create_task(bench.jobs.claim("worker", ["noop"], wait_seconds=60))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    if kind == "paused":
        await bench.jobs.resume(bench.tenant, "noop")
    else:
        await bench.jobs.complete(running[0])
    async with asyncio.timeout(30):
        assert len(await waiting) == 1


@pytest.mark.parametrize("kind", ["tenant", "type"])
async def test_many_keys_share_the_limit_of_tenant_or_type(bench: Bench, kind: str) -> None:
    jobs = await make_jobs(bench)
    if kind == "tenant":
        await bench.tenants.change(bench.tenant, limits=Limits(max_running_jobs=3))
    else:
        await bench.jobs.define(Definition(type="noop", limit_key="{key}", max_running_per_key=1, max_running=3))
    for start in range(0, 30, 3):
        claims = await bench.jobs.claim("worker", ["noop"], limit=10)
        assert [claim.job.id for claim in claims] == [job.id for job in jobs[start : start + 3]]
        assert await bench.jobs.claim("worker", ["noop"], limit=10) == []
        for claim in claims:
            await bench.jobs.complete(claim)


@pytest.mark.parametrize("way", ["paused", "full"])
async def test_a_type_without_capacity_does_not_delay_another_type(bench: Bench, way: str) -> None:
    await make_jobs(bench)
    await bench.make_job("other", priority=5)
    if way == "paused":
        await bench.jobs.pause(bench.tenant, "noop")
    else:
        await bench.jobs.define(Definition(type="noop", limit_key="{key}", max_running_per_key=1, max_running=2))
        assert len(await bench.jobs.claim("worker", ["noop"], limit=2)) == 2
    for _ in range(2):
        claims = await bench.jobs.claim("worker", ["noop", "other"], limit=5)
        assert [claim.job.type for claim in claims] == ["other"]
        await bench.make_job("other", priority=5)


async def test_concurrent_claimers_finish_the_jobs_of_all_keys(bench: Bench) -> None:
    jobs = await make_jobs(bench, jobs=3 * KEYS)
    started: list[str] = []

    async def work(name: str) -> None:
        while len(started) < len(jobs):
            claims = await bench.jobs.claim(name, ["noop"], limit=9, wait_seconds=0.05)
            started.extend(claim.job.id for claim in claims)
            for claim in claims:
                await bench.jobs.complete(claim)

    async with asyncio.timeout(120):
        await asyncio.gather(*(work(f"worker-{number}") for number in range(CLAIMERS)))
    assert sorted(started) == sorted(job.id for job in jobs)
