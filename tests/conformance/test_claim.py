"""Claims: order, limit, fences, and which claim gets which job."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest

from ingot.identity import TenantNotFound
from ingot.jobs import Claim, Definition, JobStatus
from ingot.jobs.job_options import new_job
from ingot.kernel.ids import new_id
from tests.conformance.snapshots import refuses, snapshot
from tests.factories import LEASE_SECONDS, Bench


async def test_two_workers_never_claim_the_same_job(bench: Bench) -> None:
    await bench.make_job()
    answers = await asyncio.gather(bench.jobs.claim("w1", ["noop"]), bench.jobs.claim("w2", ["noop"]))
    assert sorted(map(len, answers)) == [0, 1]


async def test_concurrent_claims_hand_out_every_job_once(bench: Bench) -> None:
    jobs = await asyncio.gather(*(bench.make_job() for _ in range(120)))
    answers = await asyncio.gather(*(bench.jobs.claim(f"w{n}", ["noop"], limit=1 + n % 7) for n in range(40)))
    claimed = [claim.job.id for claims in answers for claim in claims]
    assert sorted(claimed) == sorted(job.id for job in jobs)


async def test_concurrent_claims_are_served_in_order_each_up_to_its_limit(bench: Bench) -> None:
    jobs = [await bench.make_job() for _ in range(7)]
    limits = [2, 1, 3, 5, 1]
    answers = await asyncio.gather(
        *(bench.jobs.claim(f"w{n}", ["noop"], limit=limit, host=f"h{n}", pid=n) for n, limit in enumerate(limits))
    )
    assert [len(claims) for claims in answers] == [2, 1, 3, 1, 0]
    assert [claim.job.id for claims in answers for claim in claims] == [job.id for job in jobs]
    fences = [{claim.fence for claim in claims} for claims in answers if claims]
    assert all(len(own) == 1 for own in fences)
    assert len(set.union(*fences)) == len(fences)
    for n, claims in enumerate(answers):
        for claim in claims:
            (attempt,) = await bench.jobs.attempts(bench.tenant, claim.job.id)
            assert (attempt.worker_id, attempt.host, attempt.pid) == (f"w{n}", f"h{n}", n)
            assert attempt.fence == claim.fence


async def test_a_claim_contains_job_lease_and_timeout(bench: Bench) -> None:
    await bench.jobs.define(Definition(type="noop", timeout_seconds=42.5))
    job = await bench.make_job("noop", {"n": 1}, tags=["a"], metadata=[2])
    (claim,) = await bench.jobs.claim("host-1/boot-7", ["noop"])
    lease_end = bench.clock.now() + timedelta(seconds=LEASE_SECONDS)
    claimed_job = claim.job
    assert (claim.lease_expires_at, claim.timeout_seconds) == (lease_end, 42.5)
    assert (claimed_job.id, claimed_job.status, claimed_job.attempts, claimed_job.worker_id) == (
        job.id,
        JobStatus.RUNNING,
        1,
        "host-1/boot-7",
    )
    assert (claimed_job.fence, claimed_job.lease_expires_at, claimed_job.started_at) == (
        claim.fence,
        lease_end,
        bench.clock.now(),
    )
    assert (claimed_job.read(), claimed_job.tags, claimed_job.read("metadata")) == ({"n": 1}, ("a",), [2])


async def test_a_claimed_job_equals_the_stored_job(bench: Bench) -> None:
    claim = await bench.make_claim(payload=1)
    stored = await bench.reload(claim)
    names = [name for name in stored.__struct_fields__ if name not in ("payload", "metadata", "result")]
    assert [getattr(stored, name) for name in names] == [getattr(claim.job, name) for name in names]


async def test_every_claim_creates_an_attempt(bench: Bench) -> None:
    job = await bench.make_job()
    for worker in ("w1", "w2"):
        (claim,) = await bench.jobs.claim(worker, ["noop"], host="box", pid=123)
        await bench.jobs.release(claim)
        bench.clock.advance(seconds=1)
    (running,) = await bench.jobs.claim("w3", ["noop"])
    attempts = await bench.jobs.attempts(bench.tenant, job.id)
    seen = [(a.number, a.worker_id, a.host, a.pid, a.outcome and a.outcome.value) for a in attempts]
    assert seen == [(1, "w1", "box", 123, "released"), (2, "w2", "box", 123, "released"), (3, "w3", None, None, None)]
    assert (attempts[2].fence, attempts[2].started_at) == (running.fence, bench.clock.now())
    assert (await bench.reload(job)).attempts == 3


async def test_a_claim_updates_the_counts_and_publishes_an_event(bench: Bench) -> None:
    claim = await bench.make_claim()
    counts = (await bench.jobs.summary(bench.tenant)).counts
    assert (counts[JobStatus.QUEUED], counts[JobStatus.RUNNING]) == (0, 1)
    last = (await snapshot(bench))[0]["events"][-1]
    event_data = (last["name"], last["data"]["id"], last["data"]["fence"], last["data"]["worker_id"])
    assert event_data == ("job.started", claim.job.id, claim.fence, "worker")


async def test_a_claim_that_finds_nothing_changes_nothing(bench: Bench) -> None:
    await bench.make_job("other")
    await bench.make_job(delay=60)
    before = await snapshot(bench)
    assert await bench.jobs.claim("worker", ["noop", "absent"], limit=10) == []
    assert await snapshot(bench) == before


async def test_jobs_start_by_priority_then_time_then_id(bench: Bench) -> None:
    start = bench.clock.now()
    wanted = []
    for priority in (1, 2, 3, 4, 5):
        for seconds in (-20, -10, 0):
            for _ in range(2):
                wanted.append((priority, start + timedelta(seconds=60 + seconds)))
    shuffled = wanted.copy()
    random.Random(7).shuffle(shuffled)
    ids: dict[tuple[int, object], list[str]] = {}
    for priority, run_at in shuffled:
        job = await bench.make_job(priority=priority, run_at=run_at)
        ids.setdefault((priority, run_at), []).append(job.id)
    bench.clock.advance(seconds=60)
    claims = []
    while part := await bench.jobs.claim("worker", ["noop"], limit=4):
        claims += part
    expected = [id for key in dict.fromkeys(wanted) for id in sorted(ids[key])]
    assert [claim.job.id for claim in claims] == expected


async def test_jobs_due_at_one_instant_start_in_the_order_of_their_ids(bench: Bench) -> None:
    jobs = [await bench.make_job("a" if n % 2 else "b") for n in range(10)]
    claims = await bench.jobs.claim("worker", ["a", "b"], limit=10)
    assert [claim.job.id for claim in claims] == [job.id for job in jobs]


async def test_jobs_of_several_types_start_in_one_order(bench: Bench) -> None:
    late = await bench.make_job("a", priority=4)
    first = await bench.make_job("b", priority=1)
    middle = await bench.make_job("a", priority=2)
    claims = [(await bench.jobs.claim("worker", ["b", "a"]))[0] for _ in range(3)]
    assert [claim.job.id for claim in claims] == [first.id, middle.id, late.id]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
async def test_a_claim_never_gives_more_than_its_limit(bench: Bench, limit: int) -> None:
    other = await bench.tenants.create("other")
    tenants = [bench.tenant, other.id]
    await bench.jobs.enqueue_many(
        [new_job(tenants[n % 2], f"type-{n % 3}", priority=1 + n % 5, delay=n % 2) for n in range(30)]
    )
    bench.clock.advance(seconds=1)
    claims = await bench.jobs.claim("worker", ["type-0", "type-1", "type-2"], limit=limit)
    assert len(claims) == min(limit, 30)
    assert len({claim.job.id for claim in claims}) == len(claims)


async def test_a_claim_takes_only_the_types_it_names(bench: Bench) -> None:
    await bench.make_job("a")
    job = await bench.make_job("b")
    claims = await bench.jobs.claim("worker", ["b", "c", "b"], limit=10)
    assert [claim.job.id for claim in claims] == [job.id]


async def test_a_claim_for_one_tenant_takes_only_its_jobs(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    await bench.make_job()
    job = await bench.make_job(tenant=other.id)
    claims = await bench.jobs.claim("worker", ["noop"], limit=10, tenant=other.id)
    assert [claim.job.id for claim in claims] == [job.id]


async def test_a_claim_for_an_unknown_tenant_is_refused(bench: Bench) -> None:
    await bench.make_job()
    async with refuses(bench, TenantNotFound):
        await bench.jobs.claim("worker", ["noop"], tenant=new_id())


async def test_a_claim_for_all_serves_every_tenant(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    jobs = [await bench.make_job(), await bench.make_job(tenant=other.id)]
    claims = await bench.jobs.claim("worker", ["noop"], limit=10)
    assert {claim.job.id for claim in claims} == {job.id for job in jobs}


async def test_a_job_is_not_claimed_before_its_time(bench: Bench) -> None:
    job = await bench.make_job(delay=60)
    bench.clock.advance(seconds=59.999)
    assert await bench.jobs.claim("worker", ["noop"]) == []
    bench.clock.advance(seconds=0.001)
    (claim,) = await bench.jobs.claim("worker", ["noop"])
    assert claim.job.id == job.id


async def test_a_claim_finds_due_jobs_without_maintenance(bench: Bench) -> None:
    await bench.make_job(delay=60)
    bench.clock.advance(seconds=60)
    assert len(await bench.jobs.claim("worker", ["noop"])) == 1


async def test_a_claim_sweeps_expired_leases_without_maintenance(bench: Bench) -> None:
    lost = await bench.make_claim()
    bench.clock.advance(seconds=LEASE_SECONDS)
    await bench.jobs.claim("other", ["noop"])
    assert (await bench.reload(lost)).status is JobStatus.QUEUED
    bench.clock.advance(seconds=5)
    (claim,) = await bench.jobs.claim("other", ["noop"])
    assert (claim.job.id, claim.job.crashes) == (lost.job.id, 1)


async def test_each_claim_of_a_job_has_a_higher_fence(bench: Bench) -> None:
    await bench.make_job()
    fences = []
    for _ in range(5):
        (claim,) = await bench.jobs.claim("worker", ["noop"])
        fences.append(claim.fence)
        await bench.jobs.release(claim)
    assert sorted(set(fences)) == fences
    assert 0 < fences[0] <= fences[-1] < 2**53


async def test_a_fence_grows_after_crash_failure_and_retry(bench: Bench) -> None:
    await bench.make_job(max_attempts=2)
    fences = []

    async def claim_next() -> Claim:
        (claim,) = await bench.jobs.claim("worker", ["noop"])
        fences.append(claim.fence)
        return claim

    await claim_next()
    bench.clock.advance(seconds=LEASE_SECONDS)
    await bench.jobs.maintain()
    bench.clock.advance(seconds=5)
    await bench.jobs.fail(await claim_next(), "no")
    bench.clock.advance(seconds=3600)
    last = await claim_next()
    await bench.jobs.fail(last, "no")
    await bench.jobs.retry(bench.tenant, last.job.id)
    await claim_next()
    assert len(fences) == 4
    assert sorted(set(fences)) == fences


async def test_a_running_job_is_not_claimed_again(bench: Bench) -> None:
    await bench.make_claim()
    bench.clock.advance(seconds=LEASE_SECONDS - 1)
    assert await bench.jobs.claim("other", ["noop"]) == []


async def test_a_waiting_claim_gets_a_job_enqueued_concurrently(bench: Bench) -> None:
    job, claims = await asyncio.gather(bench.make_job(), bench.jobs.claim("worker", ["noop"], wait_seconds=10))
    assert [claim.job.id for claim in claims] == [job.id]


async def test_a_claim_of_many_types_returns_jobs_in_one_order(bench: Bench) -> None:
    types = [f"type-{number}" for number in range(12)]
    orders = [new_job(bench.tenant, type, priority=3) for type in types for _ in range(20)]
    orders += [new_job(bench.tenant, types[0], priority=1) for _ in range(100)]
    orders += [new_job(bench.tenant, types[1], priority=2) for _ in range(60)]
    jobs = [enqueued.job for enqueued in await bench.jobs.enqueue_many(orders)]
    expected = sorted(jobs, key=lambda job: (job.priority, job.run_at, job.id))
    claims = await bench.jobs.claim("worker", types, limit=200)
    assert [claim.job.id for claim in claims] == [job.id for job in expected[:200]]
    remaining = await bench.jobs.claim("worker", types, limit=1000)
    assert [claim.job.id for claim in remaining] == [job.id for job in expected[200:]]
