"""Tenants take turns by weight; inside a tenant priority is strict."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from ingot.jobs import Claim
from ingot.jobs.job_options import new_job
from tests.factories import Bench


async def make_tenants(bench: Bench, weights: list[int]) -> list[str]:
    return [(await bench.tenants.create(f"t{n}", weight=weight)).id for n, weight in enumerate(weights)]


async def fill(bench: Bench, tenant: str, jobs: int, type: str = "noop") -> None:
    await bench.jobs.enqueue_many([new_job(tenant, type) for _ in range(jobs)])


async def drain(bench: Bench, jobs: int, *, limit: int) -> list[Claim]:
    """Claims one after the other, until so many jobs have started."""
    started: list[Claim] = []
    while len(started) < jobs:
        claims = await bench.jobs.claim("w", ["noop"], limit=limit)
        assert claims
        started += claims
    return started


def shares(claims: list[Claim]) -> Counter[str]:
    return Counter(claim.job.tenant for claim in claims)


@pytest.mark.parametrize("limit", [1, 10, 100])
async def test_who_has_much_waiting_does_not_keep_the_others_waiting(bench: Bench, limit: int) -> None:
    many, few = await make_tenants(bench, [1, 1])
    await fill(bench, many, 400)
    await fill(bench, few, 40)
    started = shares(await drain(bench, 80 if limit < 100 else 100, limit=limit))
    assert started[few] == 40


@pytest.mark.parametrize("limit", [1, 7, 50])
async def test_turns_follow_the_weights(bench: Bench, limit: int) -> None:
    light, heavy = await make_tenants(bench, [1, 3])
    for tenant in (light, heavy):
        await fill(bench, tenant, 300)
    started = shares((await drain(bench, 200, limit=limit))[:200])
    assert abs(started[heavy] - 150) <= 4 + limit // 4


async def test_a_new_weight_holds_from_the_next_claims_on(bench: Bench) -> None:
    first, second = await make_tenants(bench, [1, 1])
    for tenant in (first, second):
        await fill(bench, tenant, 300)
    await drain(bench, 20, limit=1)
    await bench.tenants.change(second, weight=4)
    started = shares(await drain(bench, 100, limit=1))
    assert abs(started[second] - 80) <= 3


async def test_priority_is_strict_inside_a_tenant_and_gives_no_turn(bench: Bench) -> None:
    urgent, patient = await make_tenants(bench, [1, 1])
    for n in range(10):
        await bench.make_job("noop", n, tenant=urgent, priority=1 + n % 5)
        await bench.make_job("noop", n, tenant=patient, priority=5)
    started = await drain(bench, 20, limit=1)
    for tenant in (urgent, patient):
        own = [claim.job for claim in started if claim.job.tenant == tenant]
        assert own == sorted(own, key=lambda job: (job.priority, job.run_at, job.id))
    assert shares(started[:10]) == {urgent: 5, patient: 5}


async def test_priority_is_strict_over_all_types_that_are_asked_for(bench: Bench) -> None:
    jobs = [await bench.make_job(f"type-{n % 3}", n, priority=5 - n % 5) for n in range(15)]
    claims = await bench.jobs.claim("w", [f"type-{n}" for n in range(3)], limit=15)
    in_order = sorted(jobs, key=lambda job: (job.priority, job.run_at, job.id))
    assert [claim.job.id for claim in claims] == [job.id for job in in_order]


async def test_a_claim_is_filled_by_those_who_have_more(bench: Bench) -> None:
    poor, rich = await make_tenants(bench, [1, 1])
    await fill(bench, poor, 3)
    await fill(bench, rich, 50)
    claims = await bench.jobs.claim("w", ["noop"], limit=40)
    assert shares(claims) == {poor: 3, rich: 37}
    assert len({claim.job.id for claim in claims}) == 40


async def test_a_worker_of_one_tenant_waits_for_nobody(bench: Bench) -> None:
    mine, other = await make_tenants(bench, [1, 1])
    for tenant in (mine, other):
        await fill(bench, tenant, 20)
    claims = await bench.jobs.claim("w", ["noop"], limit=20, tenant=mine)
    assert shares(claims) == {mine: 20}


async def test_each_of_many_gets_its_share_of_any_thousand_starts(bench: Bench) -> None:
    tenants = await make_tenants(bench, [1] * 20)
    for n, tenant in enumerate(tenants):
        await fill(bench, tenant, 1000 if n < 2 else 100)
    started: list[Claim] = []
    for limit in (1, 3, 64, 500, 17, 200, 900):
        started += await bench.jobs.claim("w", ["noop"], limit=limit)
    for begin in range(0, len(started) - 999, 37):
        window = shares(started[begin : begin + 1000])
        assert min(window[tenant] for tenant in tenants) >= 1000 / (2 * len(tenants))


async def test_claims_at_once_share_the_turns(bench: Bench) -> None:
    tenants = await make_tenants(bench, [1] * 5)
    for tenant in tenants:
        await fill(bench, tenant, 100)
    answers = await asyncio.gather(*(bench.jobs.claim(f"w{n}", ["noop"], limit=5) for n in range(20)))
    claims = [claim for own in answers for claim in own]
    assert len({claim.job.id for claim in claims}) == 100
    assert min(shares(claims).values()) >= 15
