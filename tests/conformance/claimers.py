"""Many claimers of one store at once, for tests and for `make soak`."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict

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
from ingot.jobs.job_options import new_job
from tests.factories import LEASE_SECONDS, Bench

CLAIMERS = 16
BULK = 500
TYPES = ["noop", "resize", "index"]
LIMITS = [1, 2, 7, 50, 200]
WAIT_SECONDS = 0.2
CHECKED_MAX = 500


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


async def share_jobs(bench: Bench, total: int) -> None:
    """Let claimers share so many jobs of two tenants, and check that each job was claimed once."""
    tenants = [bench.tenant, (await bench.tenants.create("acme")).id]
    ledger = Ledger()

    async def work(number: int) -> None:
        chance = random.Random(number)
        while len(ledger.handed) < total:
            limit = chance.choice(LIMITS)
            scope = chance.choice([None, *tenants])
            types = chance.sample(TYPES, chance.randint(1, len(TYPES)))
            claims = await bench.jobs.claim(f"w{number}", types, limit=limit, tenant=scope, wait_seconds=WAIT_SECONDS)
            ledger.hand_out(claims, limit)
            settles = [Settle(job_id=claim.job.id, fence=claim.fence, outcome=Done()) for claim in claims]
            answers = await bench.jobs.settle_many(settles)
            assert all(isinstance(answer, Settled) for answer in answers)

    async with asyncio.TaskGroup() as group:
        group.create_task(produce(bench, tenants, total))
        for number in range(CLAIMERS):
            group.create_task(work(number))
    claimed = Counter(job_id for job_id, _ in ledger.handed)
    assert (len(claimed), set(claimed.values())) == (total, {1})
    counts = [(await bench.jobs.summary(tenant)).counts for tenant in tenants]
    assert [counted[JobStatus.SUCCEEDED] for counted in counts] == [total // 2, total // 2]
    assert sum(sum(counted.values()) for counted in counts) == total


async def share_jobs_amid_trouble(bench: Bench, total: int) -> None:
    """Let claimers that fail, fall silent and settle late share so many jobs, and check that no fence is for two."""
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
        "timed out": Failed(error="too slow", timed_out=True),
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
        while len(ledger.done) < total:
            limit = chance.choice(LIMITS)
            claims = await bench.jobs.claim(f"w{number}", TYPES, limit=limit)
            ledger.hand_out(claims, limit)
            if not claims:
                bench.clock.advance(seconds=LEASE_SECONDS / 4)
                await bench.jobs.maintain()
            said = [(c.job.id, c.fence, chance.choices([*endings], [60, 5, 5, 10, 10, 10])[0]) for c in claims]
            late = [(*chance.choice(ledger.handed), chance.choice([*endings])) for _ in claims[:5]]
            await asyncio.gather(*(settle(*one) for one in said + late))

    async with asyncio.TaskGroup() as group:
        group.create_task(produce(bench, [bench.tenant], total))
        for number in range(CLAIMERS):
            group.create_task(work(number))
    assert len(ledger.handed) == len(set(ledger.handed))
    assert {len(fences) for fences in ledger.done.values()} == {1}
    assert (await bench.jobs.summary(bench.tenant)).counts[JobStatus.SUCCEEDED] == total
    fences = defaultdict(list)
    for job_id, fence in ledger.handed:
        fences[job_id].append(fence)
    outcomes: set[AttemptOutcome | None] = set()
    for job_id in random.Random(0).sample(sorted(fences), min(total, CHECKED_MAX)):
        attempts = await bench.jobs.attempts(bench.tenant, job_id)
        assert [attempt.fence for attempt in attempts] == sorted(fences[job_id])
        outcomes |= {attempt.outcome for attempt in attempts}
    assert outcomes == set(AttemptOutcome) - {AttemptOutcome.CANCELED}  # All kinds of trouble happened.
