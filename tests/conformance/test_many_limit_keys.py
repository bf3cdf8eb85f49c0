"""Very many keys of one tenant: the order among them is as strict as among few, and none is forgotten."""

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


def place(job: Job) -> tuple[int, str]:
    return job.priority, job.id


def order(bench: Bench, key: int, *, type: str = "noop", priority: int = 3) -> NewJob:
    return new_job(bench.tenant, type, {"key": key}, priority=priority)


async def fill(bench: Bench, *, jobs: int = KEYS) -> list[Job]:
    """Jobs of as many keys, of any priority; in the order in which they are due."""
    chance = random.Random(jobs)
    keys = chance.sample(range(jobs), jobs)
    made = await bench.jobs.enqueue_many([order(bench, key % KEYS, priority=chance.randint(1, 5)) for key in keys])
    return sorted((one.job for one in made), key=place)


@pytest.fixture(autouse=True)
async def one_at_a_time(bench: Bench) -> None:
    await bench.jobs.define(Definition(type="noop", limit_key="{key}", max_running_per_key=1))


@pytest.mark.parametrize("at_once", [1, 7, 100])
async def test_the_first_of_all_keys_come_first(bench: Bench, at_once: int) -> None:
    jobs = await fill(bench)
    for start in range(0, 5 * at_once, at_once):
        claims = await bench.jobs.claim("worker", ["noop"], limit=at_once)
        assert [claim.job.id for claim in claims] == [job.id for job in jobs[start : start + at_once]][: len(claims)]
        assert len(claims) == min(at_once, max(0, KEYS - start))


async def test_all_of_many_keys_start_and_then_no_more(bench: Bench) -> None:
    await fill(bench, jobs=2 * KEYS)
    claims = await bench.jobs.claim("worker", ["noop"], limit=1000)
    assert len({claim.job.read()["key"] for claim in claims}) == len(claims) == KEYS
    assert await bench.jobs.claim("worker", ["noop"], limit=1000) == []
    for claim in claims[: KEYS // 2]:
        await bench.jobs.complete(claim)
    assert len(await bench.jobs.claim("worker", ["noop"], limit=1000)) == KEYS // 2


async def test_what_is_urgent_comes_before_many_keys_that_are_known(bench: Bench) -> None:
    await fill(bench)
    await bench.jobs.claim("worker", ["noop"], limit=5)
    urgent = [(await bench.jobs.enqueue_many([order(bench, key, priority=1)]))[0].job for key in (KEYS, KEYS + 1)]
    first = [claim.job.id for claim in await bench.jobs.claim("worker", ["noop"], limit=200)]
    after = [claim.job.priority for claim in await bench.jobs.claim("worker", ["noop"], limit=200)]
    assert {job.id for job in urgent} <= set(first)
    assert min(after) > 1


async def test_many_keys_without_room_are_passed_over(bench: Bench) -> None:
    jobs = await fill(bench)
    running = [claim.job.read()["key"] for claim in await bench.jobs.claim("worker", ["noop"], limit=200)]
    await bench.jobs.enqueue_many([order(bench, key, priority=1) for key in running])
    for start in (200, 205):
        claims = await bench.jobs.claim("worker", ["noop"], limit=5)
        assert [claim.job.id for claim in claims] == [job.id for job in jobs[start : start + 5]]


async def fill_keys(bench: Bench, *parts: tuple[str, int, int]) -> list[Job]:
    """For each part so many keys with this name, and a job of this priority for each."""
    orders = [
        new_job(bench.tenant, "noop", {"key": f"{name}{number}"}, priority=priority)
        for name, keys, priority in parts
        for number in range(keys)
    ]
    return [made.job for made in await bench.jobs.enqueue_many(orders)]


async def priorities(bench: Bench, limit: int) -> list[int]:
    return [claim.job.priority for claim in await bench.jobs.claim("worker", ["noop"], limit=limit)]


async def test_what_keys_with_room_have_later_waits_for_what_others_have_sooner(bench: Bench) -> None:
    await bench.jobs.define(Definition(type="noop", limit_key="{key}", max_running_per_key=2))
    await fill_keys(bench, ("full", 63, 1), ("full", 63, 1))
    assert len(await priorities(bench, 126)) == 126
    await fill_keys(bench, ("full", 63, 1), ("a", 1, 1), ("a", 1, 5), ("b", 100, 3))
    assert await priorities(bench, 2) == [1, 3]


async def test_what_was_canceled_does_not_bring_later_work_forward(bench: Bench) -> None:
    await bench.jobs.define(Definition(type="noop", limit_key="{key}"))
    first = await fill_keys(bench, ("a", 70, 1))
    await fill_keys(bench, ("a", 70, 5), ("b", 100, 3), ("c", 64, 1))
    assert await priorities(bench, 1) == [1]
    for job in first[1:]:
        await bench.jobs.cancel(bench.tenant, job.id)
    assert await priorities(bench, 64) + await priorities(bench, 64) == [1] * 64 + [3] * 64


async def test_a_claim_of_all_leaves_the_others_in_order(bench: Bench) -> None:
    await bench.jobs.define(Definition(type="noop", limit_key="{key}"))
    await fill_keys(bench, ("b", 64, 1), ("a", 136, 1), ("a", 136, 5), ("b", 64, 3))
    assert await priorities(bench, 1) + await priorities(bench, 199) == [1] * 200
    assert await priorities(bench, 10) == [3] * 10


@pytest.mark.parametrize("kind", ["tenant", "type", "paused"])
async def test_waiting_claims_of_many_keys_are_woken_when_there_is_room(bench: Bench, kind: str) -> None:
    await fill(bench)
    if kind == "tenant":
        await bench.tenants.change(bench.tenant, limits=Limits(max_running_jobs=3))
    elif kind == "type":
        await bench.jobs.define(Definition(type="noop", limit_key="{key}", max_running_per_key=1, max_running=3))
    held = await bench.jobs.claim("worker", ["noop"], limit=3)
    if kind == "paused":
        await bench.jobs.pause(bench.tenant, "noop")
    waiting = asyncio.create_task(bench.jobs.claim("worker", ["noop"], wait_seconds=60))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    if kind == "paused":
        await bench.jobs.resume(bench.tenant, "noop")
    else:
        await bench.jobs.complete(held[0])
    async with asyncio.timeout(30):
        assert len(await waiting) == 1


@pytest.mark.parametrize("kind", ["tenant", "type"])
async def test_many_keys_share_the_room_of_all(bench: Bench, kind: str) -> None:
    jobs = await fill(bench)
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
async def test_a_type_without_room_keeps_no_other_waiting(bench: Bench, way: str) -> None:
    await fill(bench)
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


async def test_claimers_at_once_leave_none_of_many_keys_behind(bench: Bench) -> None:
    jobs = await fill(bench, jobs=3 * KEYS)
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
