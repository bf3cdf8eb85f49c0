"""Tenants share claims by weight; within a tenant priority is strict."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from ingot.jobs import Claim
from ingot.jobs.job_options import new_job
from tests.factories import Bench


async def make_tenants(bench: Bench, weights: list[int]) -> list[str]:
    return [(await bench.tenants.create(f"t{n}", weight=weight)).id for n, weight in enumerate(weights)]


async def enqueue_jobs(bench: Bench, tenant: str, jobs: int, type: str = "noop") -> None:
    await bench.jobs.enqueue_many([new_job(tenant, type) for _ in range(jobs)])


async def claim_jobs(bench: Bench, jobs: int, *, limit: int) -> list[Claim]:
    """Claim repeatedly until at least this many jobs have started."""
    started: list[Claim] = []
    while len(started) < jobs:
        claims = await bench.jobs.claim("w", ["noop"], limit=limit)
        assert claims
        started += claims
    return started


def count_by_tenant(claims: list[Claim]) -> Counter[str]:
    return Counter(claim.job.tenant for claim in claims)


@pytest.mark.parametrize("limit", [1, 10, 100])
async def test_a_tenant_with_many_jobs_does_not_delay_another(bench: Bench, limit: int) -> None:
    many, few = await make_tenants(bench, [1, 1])
    await enqueue_jobs(bench, many, 400)
    await enqueue_jobs(bench, few, 40)
    started = count_by_tenant(await claim_jobs(bench, 80 if limit < 100 else 100, limit=limit))
    assert started[few] == 40


@pytest.mark.parametrize("limit", [1, 7, 50])
async def test_shares_are_proportional_to_weights(bench: Bench, limit: int) -> None:
    light, heavy = await make_tenants(bench, [1, 3])
    for tenant in (light, heavy):
        await enqueue_jobs(bench, tenant, 300)
    started = count_by_tenant((await claim_jobs(bench, 200, limit=limit))[:200])
    assert abs(started[heavy] - 150) <= 4 + limit // 4


async def test_a_changed_weight_applies_to_the_next_claims(bench: Bench) -> None:
    first, second = await make_tenants(bench, [1, 1])
    for tenant in (first, second):
        await enqueue_jobs(bench, tenant, 300)
    await claim_jobs(bench, 20, limit=1)
    await bench.tenants.change(second, weight=4)
    started = count_by_tenant(await claim_jobs(bench, 100, limit=1))
    assert abs(started[second] - 80) <= 3


async def test_priority_orders_jobs_within_a_tenant_and_not_between_tenants(bench: Bench) -> None:
    urgent, patient = await make_tenants(bench, [1, 1])
    for n in range(10):
        await bench.make_job("noop", n, tenant=urgent, priority=1 + n % 5)
        await bench.make_job("noop", n, tenant=patient, priority=5)
    started = await claim_jobs(bench, 20, limit=1)
    for tenant in (urgent, patient):
        own = [claim.job for claim in started if claim.job.tenant == tenant]
        assert own == sorted(own, key=lambda job: (job.priority, job.run_at, job.id))
    assert count_by_tenant(started[:10]) == {urgent: 5, patient: 5}


async def test_priority_is_strict_across_all_claimed_types(bench: Bench) -> None:
    jobs = [await bench.make_job(f"type-{n % 3}", n, priority=5 - n % 5) for n in range(15)]
    claims = await bench.jobs.claim("w", [f"type-{n}" for n in range(3)], limit=15)
    in_order = sorted(jobs, key=lambda job: (job.priority, job.run_at, job.id))
    assert [claim.job.id for claim in claims] == [job.id for job in in_order]


async def test_a_claim_is_filled_with_jobs_of_tenants_that_have_more(bench: Bench) -> None:
    poor, rich = await make_tenants(bench, [1, 1])
    await enqueue_jobs(bench, poor, 3)
    await enqueue_jobs(bench, rich, 50)
    claims = await bench.jobs.claim("w", ["noop"], limit=40)
    assert count_by_tenant(claims) == {poor: 3, rich: 37}
    assert len({claim.job.id for claim in claims}) == 40


async def test_a_claim_for_one_tenant_ignores_the_shares_of_others(bench: Bench) -> None:
    mine, other = await make_tenants(bench, [1, 1])
    for tenant in (mine, other):
        await enqueue_jobs(bench, tenant, 20)
    claims = await bench.jobs.claim("w", ["noop"], limit=20, tenant=mine)
    assert count_by_tenant(claims) == {mine: 20}


async def test_each_of_twenty_tenants_gets_half_its_share_of_any_thousand_starts(bench: Bench) -> None:
    tenants = await make_tenants(bench, [1] * 20)
    for n, tenant in enumerate(tenants):
        await enqueue_jobs(bench, tenant, 1000 if n < 2 else 100)
    started: list[Claim] = []
    for limit in (1, 3, 64, 500, 17, 200, 900):
        started += await bench.jobs.claim("w", ["noop"], limit=limit)
    for begin in range(0, len(started) - 999, 37):
        window = count_by_tenant(started[begin : begin + 1000])
        assert min(window[tenant] for tenant in tenants) >= 1000 / (2 * len(tenants))


async def test_concurrent_claims_share_jobs_fairly(bench: Bench) -> None:
    tenants = await make_tenants(bench, [1] * 5)
    for tenant in tenants:
        await enqueue_jobs(bench, tenant, 100)
    answers = await asyncio.gather(*(bench.jobs.claim(f"w{n}", ["noop"], limit=5) for n in range(20)))
    claims = [claim for own in answers for claim in own]
    assert len({claim.job.id for claim in claims}) == 100
    assert min(count_by_tenant(claims).values()) >= 15
