"""Many claimers at once: no job twice, no answer above its limit, no fence for two."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingot.jobs import (
    AttemptOutcome,
    Backoff,
    Claim,
    Definition,
    Done,
    Failed,
    JobStatus,
    LeaseLost,
    Release,
    Settle,
    Settled,
    Snooze,
)
from ingot.jobs.checks import ATTEMPTS_MAX
from ingot.jobs.orders import new_job
from tests.factories import LEASE_SECONDS, Bench

CLAIMERS = 16
JOBS = 50_000
JOBS_WITH_TROUBLE = 20_000
BULK = 500
TYPES = ["noop", "resize", "index"]
LIMITS = [1, 2, 7, 50, 200]
WAIT_SECONDS = 0.2

example_number = count()


class Ledger:
    """Every attempt that was handed out, in order."""

    def __init__(self) -> None:
        self.handed: list[tuple[str, int]] = []
        self.done: defaultdict[str, set[int]] = defaultdict(set)

    def hand_out(self, claims: list[Claim], limit: int) -> None:
        assert len(claims) <= limit
        self.handed += [(claim.job.id, claim.fence) for claim in claims]


async def produce(bench: Bench, tenants: list[str], jobs: int) -> None:
    """Ask for jobs in bulk: all tenants, types and priorities in turn."""
    for start in range(0, jobs, BULK):
        numbers = range(start, min(start + BULK, jobs))
        orders = [
            new_job(tenants[n % len(tenants)], TYPES[n % len(TYPES)], n, priority=1 + n % 5, dedupe_key=f"d{n}")
            for n in numbers
        ]
        await bench.jobs.enqueue_many(orders)


@pytest.mark.long
async def test_sixteen_claimers_share_fifty_thousand_jobs_and_none_is_claimed_twice(bench: Bench) -> None:
    tenants = [bench.tenant, (await bench.tenants.create("acme")).id]
    ledger = Ledger()

    async def work(number: int) -> None:
        chance = random.Random(number)
        while len(ledger.handed) < JOBS:
            limit = chance.choice(LIMITS)
            scope = chance.choice([None, *tenants])
            types = chance.sample(TYPES, chance.randint(1, len(TYPES)))
            claims = await bench.jobs.claim(f"w{number}", types, limit=limit, tenant=scope, wait_seconds=WAIT_SECONDS)
            ledger.hand_out(claims, limit)
            settles = [Settle(job_id=claim.job.id, fence=claim.fence, outcome=Done()) for claim in claims]
            answers = await bench.jobs.settle_many(settles)
            assert all(isinstance(answer, Settled) for answer in answers)

    async with asyncio.TaskGroup() as group:
        group.create_task(produce(bench, tenants, JOBS))
        for number in range(CLAIMERS):
            group.create_task(work(number))
    claimed = Counter(job_id for job_id, _ in ledger.handed)
    assert (len(claimed), set(claimed.values())) == (JOBS, {1})
    counts = [(await bench.jobs.summary(tenant)).counts for tenant in tenants]
    assert [counted[JobStatus.SUCCEEDED] for counted in counts] == [JOBS // 2, JOBS // 2]
    assert sum(sum(counted.values()) for counted in counts) == JOBS


@pytest.mark.long
async def test_no_attempt_is_handed_out_twice_amid_silent_workers_sweeps_and_late_settles(bench: Bench) -> None:
    for type in TYPES:
        patient = Definition(
            type=type,
            max_attempts=ATTEMPTS_MAX,
            crash_cap=ATTEMPTS_MAX,
            backoff=Backoff(first_seconds=0, factor=1, max_seconds=0),
        )
        await bench.jobs.define(patient)
    ledger = Ledger()
    endings = {
        "done": Done(),
        "failed": Failed(error="broken"),
        "snoozed": Snooze(delay=0),
        "released": Release(),
        "silent": None,
    }

    async def settle(job_id: str, fence: int, ending: str) -> None:
        outcome = endings[ending]
        if outcome is None:
            return
        try:
            settled = await bench.jobs.settle(job_id, fence, outcome)
        except LeaseLost:
            return
        if settled.status is JobStatus.SUCCEEDED:
            ledger.done[job_id].add(fence)

    async def work(number: int) -> None:
        chance = random.Random(number)
        while len(ledger.done) < JOBS_WITH_TROUBLE:
            limit = chance.choice(LIMITS)
            claims = await bench.jobs.claim(f"w{number}", TYPES, limit=limit)
            ledger.hand_out(claims, limit)
            if not claims:
                bench.clock.advance(seconds=LEASE_SECONDS / 4)
                await bench.jobs.tend()
            said = [(c.job.id, c.fence, chance.choices([*endings], [60, 10, 10, 10, 10])[0]) for c in claims]
            late = [(*chance.choice(ledger.handed), chance.choice([*endings])) for _ in claims[:5]]
            await asyncio.gather(*(settle(*one) for one in said + late))

    async with asyncio.TaskGroup() as group:
        group.create_task(produce(bench, [bench.tenant], JOBS_WITH_TROUBLE))
        for number in range(CLAIMERS):
            group.create_task(work(number))
    assert len(ledger.handed) == len(set(ledger.handed))
    assert {len(fences) for fences in ledger.done.values()} == {1}
    assert (await bench.jobs.summary(bench.tenant)).counts[JobStatus.SUCCEEDED] == JOBS_WITH_TROUBLE
    fences = defaultdict(list)
    for job_id, fence in ledger.handed:
        fences[job_id].append(fence)
    outcomes: set[AttemptOutcome | None] = set()
    for job_id in random.Random(0).sample(sorted(fences), 500):
        attempts = await bench.jobs.attempts(bench.tenant, job_id)
        assert [attempt.fence for attempt in attempts] == sorted(fences[job_id])
        outcomes |= {attempt.outcome for attempt in attempts}
    assert outcomes == set(AttemptOutcome)  # All kinds of trouble happened.


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ready=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(1, 5)), max_size=40),
    claims=st.lists(
        st.tuples(
            st.sampled_from([1, 2, 3, 7, 30, 1000]),
            st.none() | st.integers(0, 1),
            st.sets(st.integers(0, 2), min_size=1),
        ),
        min_size=1,
        max_size=6,
    ),
)
async def test_a_claim_never_gets_more_than_its_limit_or_less_than_there_is(
    bench: Bench, ready: list[tuple[int, int, int]], claims: list[tuple[int, int | None, set[int]]]
) -> None:
    example = next(example_number)
    types = [f"{type}-{example}" for type in TYPES]
    tenants = [bench.tenant, (await bench.tenants.create(f"acme-{example}")).id]
    waiting = Counter((tenants[owner], types[type]) for owner, type, _ in ready)
    orders = [new_job(tenants[owner], types[type], priority=priority) for owner, type, priority in ready]
    await bench.jobs.enqueue_many(orders)
    for limit, owner, wanted in claims:
        scope = None if owner is None else tenants[owner]
        chosen = [types[type] for type in wanted]
        got = await bench.jobs.claim("w", chosen, limit=limit, tenant=scope)
        there = sum(n for (tenant, type), n in waiting.items() if type in chosen and scope in (None, tenant))
        assert len(got) == min(limit, there)
        taken = Counter((claim.job.tenant, claim.job.type) for claim in got)
        assert taken <= waiting
        assert all(type in chosen and scope in (None, tenant) for tenant, type in taken)
        waiting -= taken
