"""Concurrency limits of tenants, types and keys: they are never exceeded, and never delay jobs they do not cover."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from itertools import groupby
from pathlib import Path

import pytest

from ingot.identity import Limits
from ingot.jobs import Claim, Definition, Job, Jobs, JobStatus
from ingot.jobs.job_options import new_job
from ingot.kernel.clock import ManualClock
from tests.conformance.counting_store import WatchedStore
from tests.factories import LEASE_SECONDS, Bench, open_bench

KINDS = ["tenant", "type", "key"]
CLAIMERS = 16


async def set_limit(bench: Bench, kind: str, most: int, *, type: str = "noop") -> None:
    """Limit how many jobs run at once: of the tenant, of the type, or of each key of the type."""
    if kind == "tenant":
        await bench.tenants.change(bench.tenant, limits=Limits(max_running_jobs=most))
    elif kind == "type":
        await bench.jobs.define(Definition(type=type, max_running=most))
    else:
        await bench.jobs.define(Definition(type=type, limit_key="{key}", max_running_per_key=most))


async def enqueue_jobs(
    bench: Bench, jobs: int, type: str = "noop", *, key: str = "k", tenant: str | None = None
) -> None:
    await bench.jobs.enqueue_many([new_job(tenant or bench.tenant, type, {"key": key}) for _ in range(jobs)])


async def claim_jobs(bench: Bench, *types: str, limit: int = 100, tenant: str | None = None) -> list[Claim]:
    return await bench.jobs.claim("worker", types or ["noop"], limit=limit, tenant=tenant)


def ids(jobs: Sequence[Claim | Job]) -> list[str]:
    return [job.job.id if isinstance(job, Claim) else job.id for job in jobs]


# -- the number of running jobs -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("claim_limit", [1, 2, 100])
async def test_no_more_jobs_run_than_the_limit_permits(bench: Bench, kind: str, claim_limit: int) -> None:
    await set_limit(bench, kind, 3)
    await enqueue_jobs(bench, 10)
    claims = [claim for _ in range(5) for claim in await claim_jobs(bench, limit=claim_limit)]
    assert len(claims) == 3
    assert (await bench.jobs.summary(bench.tenant)).running == 3


async def expire_lease(bench: Bench, claim: Claim) -> None:
    bench.clock.advance(seconds=LEASE_SECONDS)
    await bench.jobs.maintain()


async def cancel_and_release(bench: Bench, claim: Claim) -> None:
    await bench.jobs.cancel(claim.job.tenant, claim.job.id)
    await bench.jobs.release(claim)


ENDS: dict[str, Callable[[Bench, Claim], Awaitable[object]]] = {
    "done": lambda bench, claim: bench.jobs.complete(claim),
    "failed": lambda bench, claim: bench.jobs.fail(claim, "again"),
    "dead": lambda bench, claim: bench.jobs.fail(claim, "no", retry=False),
    "snoozed": lambda bench, claim: bench.jobs.snooze(claim, timedelta(hours=1)),
    "released": lambda bench, claim: bench.jobs.release(claim),
    "canceled": cancel_and_release,
    "lost": expire_lease,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ENDS)
async def test_the_next_job_starts_however_the_running_one_ends(bench: Bench, kind: str, end: str) -> None:
    await set_limit(bench, kind, 1)
    await enqueue_jobs(bench, 3)
    (claim,) = await claim_jobs(bench)
    assert await claim_jobs(bench) == []
    await ENDS[end](bench, claim)
    assert len(await claim_jobs(bench)) == 1
    assert await claim_jobs(bench) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ENDS)
async def test_a_waiting_claim_is_woken_when_a_running_job_ends(bench: Bench, kind: str, end: str) -> None:
    await set_limit(bench, kind, 1)
    await enqueue_jobs(bench, 2)
    (claim,) = await claim_jobs(bench)
    store = WatchedStore(bench.store)
    waiting = asyncio.create_task(store.jobs().claim("waiter", ["noop"], wait_seconds=60))
    await store.found_nothing(1)
    await ENDS[end](bench, claim)
    async with asyncio.timeout(30):
        assert len(await waiting) == 1


async def test_a_cancel_request_does_not_free_capacity(bench: Bench) -> None:
    await set_limit(bench, "type", 1)
    await enqueue_jobs(bench, 2)
    (claim,) = await claim_jobs(bench)
    await bench.jobs.cancel(bench.tenant, claim.job.id)
    assert await claim_jobs(bench) == []


async def test_a_renewed_lease_keeps_its_capacity(bench: Bench) -> None:
    await set_limit(bench, "type", 1)
    await enqueue_jobs(bench, 2)
    (claim,) = await claim_jobs(bench)
    for _ in range(3):
        bench.clock.advance(seconds=LEASE_SECONDS - 1)
        await bench.jobs.heartbeat(claim.job.id, claim.fence)
        assert await claim_jobs(bench) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_concurrent_claims_share_the_capacity(bench: Bench, kind: str) -> None:
    await set_limit(bench, kind, 5)
    await enqueue_jobs(bench, 50)
    answers = await asyncio.gather(*(bench.jobs.claim(f"w{n}", ["noop"], limit=2) for n in range(CLAIMERS)))
    assert sum(map(len, answers)) == 5


@pytest.mark.parametrize("kind", KINDS)
async def test_limits_count_running_jobs_across_a_restart(engine: str, tmp_path: Path, kind: str) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        await set_limit(bench, kind, 2)
        await enqueue_jobs(bench, 5)
        claim = (await claim_jobs(bench, limit=1))[0]
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        await bench.jobs.heartbeat(claim.job.id, claim.fence)
        assert len(await claim_jobs(bench)) == 1
        await bench.jobs.complete(claim)
        assert len(await claim_jobs(bench)) == 1


# -- the scope of a limit -----------------------------------------------------------------------------------


async def test_the_types_of_a_tenant_share_its_limit(bench: Bench) -> None:
    await set_limit(bench, "tenant", 3)
    for type in "ab":
        await enqueue_jobs(bench, 5, type)
    assert len(await claim_jobs(bench, "a", limit=2)) == 2
    assert len(await claim_jobs(bench, "b")) == 1
    assert await claim_jobs(bench, "a") == await claim_jobs(bench, "a", "b") == []


async def test_a_waiting_claim_of_another_type_is_woken_when_the_tenant_has_capacity(bench: Bench) -> None:
    await set_limit(bench, "tenant", 1)
    running = await bench.make_claim("a")
    job = await bench.make_job("b")
    store = WatchedStore(bench.store)
    waiting = asyncio.create_task(store.jobs().claim("waiter", ["b"], wait_seconds=60))
    await store.found_nothing(1)
    await bench.jobs.complete(running)
    async with asyncio.timeout(30):
        assert ids(await waiting) == [job.id]


async def test_the_limit_of_a_tenant_does_not_delay_another_tenant(bench: Bench) -> None:
    other = (await bench.tenants.create("other")).id
    await set_limit(bench, "tenant", 1)
    await enqueue_jobs(bench, 50)
    await enqueue_jobs(bench, 20, tenant=other)
    tenants = [one.job.tenant for _ in range(21) for one in await claim_jobs(bench, limit=1)]
    assert Counter(tenants) == {bench.tenant: 1, other: 20}


async def test_a_tenant_with_a_limit_of_zero_runs_no_jobs(bench: Bench) -> None:
    await set_limit(bench, "tenant", 0)
    await enqueue_jobs(bench, 2)
    assert await claim_jobs(bench) == []


@pytest.mark.parametrize("kind", ["type", "key"])
async def test_a_common_definition_limits_each_tenant_separately(bench: Bench, kind: str) -> None:
    other = (await bench.tenants.create("other")).id
    await set_limit(bench, kind, 2)
    for tenant in (bench.tenant, other):
        await enqueue_jobs(bench, 5, tenant=tenant)
    assert Counter(claim.job.tenant for claim in await claim_jobs(bench)) == {bench.tenant: 2, other: 2}


async def test_a_tenants_own_definition_limits_only_that_tenant(bench: Bench) -> None:
    other = (await bench.tenants.create("other")).id
    await set_limit(bench, "type", 1)
    await bench.jobs.define(Definition(type="noop", tenant=other, max_running=3))
    for tenant in (bench.tenant, other):
        await enqueue_jobs(bench, 5, tenant=tenant)
    assert Counter(claim.job.tenant for claim in await claim_jobs(bench)) == {bench.tenant: 1, other: 3}


async def test_a_limited_type_does_not_delay_another_type(bench: Bench) -> None:
    await set_limit(bench, "type", 1, type="a")
    for type in "ab":
        await enqueue_jobs(bench, 5, type)
    assert Counter(claim.job.type for claim in await claim_jobs(bench, "a", "b")) == {"a": 1, "b": 5}


async def test_all_limits_apply_together(bench: Bench) -> None:
    await set_limit(bench, "tenant", 5)
    await bench.jobs.define(Definition(type="a", max_running=3, limit_key="{key}", max_running_per_key=2))
    for key in "xyz":
        await enqueue_jobs(bench, 4, "a", key=key)
    await enqueue_jobs(bench, 4, "b")
    claims = await claim_jobs(bench, "a")
    assert Counter(claim.job.read()["key"] for claim in claims) == {"x": 2, "y": 1}
    assert len(await claim_jobs(bench, "a", "b")) == 2


# -- keys ---------------------------------------------------------------------------------------------------


async def test_each_key_has_its_own_capacity(bench: Bench) -> None:
    await set_limit(bench, "key", 2)
    for key in "xyz":
        await enqueue_jobs(bench, 5, key=key)
    claims = await claim_jobs(bench)
    assert Counter(claim.job.read()["key"] for claim in claims) == {"x": 2, "y": 2, "z": 2}
    await bench.jobs.complete(next(claim for claim in claims if claim.job.read()["key"] == "y"))
    assert [claim.job.read()["key"] for claim in await claim_jobs(bench)] == ["y"]


async def test_jobs_without_the_key_are_not_limited_by_it(bench: Bench) -> None:
    await set_limit(bench, "key", 1)
    payloads: list[object] = [None, {}, [], "k", {"a": 1}]
    await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", payload) for payload in payloads])
    assert len(await claim_jobs(bench)) == 5


@pytest.mark.parametrize(
    ("template", "same", "other"),
    [
        ("{account.id}", [{"account": {"id": "x"}}, {"account": {"id": "x", "name": "n"}}], {"account": {"id": "y"}}),
        ("{files.1}", [{"files": ["a", "b"]}, {"files": ["c", "b", "d"]}], {"files": ["b", "a"]}),
        ("{account}-{region}", [{"account": 1, "region": "eu"}] * 2, {"account": 1, "region": "us"}),
        ("{account}-{region}", [{"account": 1}, {"account": 1, "region": None}], {"account": 1, "region": "us"}),
        ("{n}", [{"n": 5}, {"n": 5}], {"n": 6}),
        ("{n}", [{"n": {"a": 1, "b": 2}}, {"n": {"b": 2, "a": 1}}], {"n": {"a": 1}}),
        ("{n}", [{"n": "x" * 5000}, {"n": "x" * 5000}], {"n": "x" * 4999 + "y"}),
        ("{n}", [{"n": "grün\x00"}, {"n": "grün"}], {"n": "gruen"}),
    ],
)
async def test_the_limit_key_is_built_from_parts_of_the_payload(
    bench: Bench, template: str, same: list[object], other: object
) -> None:
    await bench.jobs.define(Definition(type="noop", limit_key=template, max_running_per_key=1))
    jobs = [await bench.make_job(payload=payload) for payload in (*same, other)]
    assert ids(await claim_jobs(bench)) == [jobs[0].id, jobs[-1].id]


async def test_a_job_keeps_its_limit_key_when_the_definition_changes(bench: Bench) -> None:
    await bench.jobs.define(Definition(type="noop", limit_key="{a}", max_running_per_key=1))
    before = [await bench.make_job(payload={"a": 1, "b": n}) for n in range(2)]
    await bench.jobs.define(Definition(type="noop", limit_key="{b}", max_running_per_key=1))
    after = [await bench.make_job(payload={"a": 1, "b": n + 5}) for n in range(2)]
    claims = await claim_jobs(bench)
    assert ids(claims) == ids([before[0], *after])
    await bench.jobs.complete(claims[0])
    (last,) = await claim_jobs(bench)
    await bench.jobs.retry(bench.tenant, before[0].id)
    assert (last.job.id, await claim_jobs(bench)) == (before[1].id, [])


async def test_oldest_queued_seconds_covers_all_keys(bench: Bench) -> None:
    await set_limit(bench, "key", 1)
    for key in "zxy":
        await enqueue_jobs(bench, 2, key=key)
        bench.clock.advance(seconds=10)
    assert (await bench.jobs.summary(bench.tenant)).oldest_queued_seconds == 30


# -- order --------------------------------------------------------------------------------------------------


async def test_priority_is_strict_among_jobs_with_capacity(bench: Bench) -> None:
    await set_limit(bench, "key", 1)
    chance = random.Random(3)
    jobs = [
        await bench.make_job(payload={"key": chance.choice("wxyz")}, priority=chance.randint(1, 5)) for _ in range(40)
    ]
    waiting = sorted(jobs, key=lambda job: (job.priority, job.run_at, job.id))
    while waiting:
        first_of_key = {job.read()["key"]: job.id for job in reversed(waiting)}
        claims = await claim_jobs(bench, limit=3) + await claim_jobs(bench)
        assert ids(claims) == [job.id for job in waiting if job.id in first_of_key.values()]
        for one in claims:
            await bench.jobs.complete(one)
        waiting = [job for job in waiting if job.id not in ids(claims)]


async def test_an_urgent_job_without_capacity_is_skipped(bench: Bench) -> None:
    await set_limit(bench, "type", 1, type="a")
    await bench.make_claim("a")
    for type, priority in (("a", 1), ("b", 5)):
        await bench.make_job(type, priority=priority)
    assert [claim.job.type for claim in await claim_jobs(bench, "a", "b", limit=1)] == ["b"]


# -- changed limits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_no_job_starts_under_a_lowered_limit_until_enough_have_ended(bench: Bench, kind: str) -> None:
    await set_limit(bench, kind, 4)
    await enqueue_jobs(bench, 10)
    claims = await claim_jobs(bench)
    await set_limit(bench, kind, 2)
    for running in (4, 3, 2):
        assert await claim_jobs(bench) == []
        assert (await bench.jobs.summary(bench.tenant)).running == running
        await bench.jobs.complete(claims.pop())
    assert len(await claim_jobs(bench)) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("most", [3, None])
async def test_waiting_claims_are_woken_by_a_raised_limit(bench: Bench, kind: str, most: int | None) -> None:
    await set_limit(bench, kind, 1)
    await enqueue_jobs(bench, 3)
    await claim_jobs(bench)
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    waiting = [asyncio.create_task(jobs.claim(f"w{n}", ["noop"], wait_seconds=60)) for n in range(2)]
    await store.found_nothing(2)
    if most is not None:
        await set_limit(bench, kind, most)
    elif kind == "tenant":
        await bench.tenants.change(bench.tenant, limits=Limits())
    else:
        await bench.jobs.define(Definition(type="noop"))
    async with asyncio.timeout(30):
        assert [len(await one) for one in waiting] == [1, 1]


async def test_a_waiting_claim_is_woken_by_a_tenants_own_definition(bench: Bench) -> None:
    await set_limit(bench, "type", 1)
    await enqueue_jobs(bench, 2)
    await claim_jobs(bench)
    store = WatchedStore(bench.store)
    waiting = asyncio.create_task(store.jobs().claim("w", ["noop"], wait_seconds=60))
    await store.found_nothing(1)
    await bench.jobs.define(Definition(type="noop", tenant=bench.tenant))
    async with asyncio.timeout(30):
        assert len(await waiting) == 1


async def test_waiting_claims_are_woken_when_a_type_is_resumed(bench: Bench) -> None:
    await enqueue_jobs(bench, 2)
    await bench.jobs.pause(bench.tenant, "noop")
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    waiting = [asyncio.create_task(jobs.claim(f"w{n}", ["noop"], wait_seconds=60)) for n in range(2)]
    await store.found_nothing(2)
    await bench.jobs.resume(bench.tenant, "noop")
    async with asyncio.timeout(30):
        assert [len(await one) for one in waiting] == [1, 1]


# -- concurrent claims --------------------------------------------------------------------------------------


class RunningJobs:
    """Counts jobs that certainly run: from the result of the claim until just before the settle."""

    def __init__(self) -> None:
        self.most: Counter[tuple[str, ...]] = Counter()
        self._now: Counter[tuple[str, ...]] = Counter()

    @staticmethod
    def _limit_scopes(claim: Claim) -> list[tuple[str, ...]]:
        job = claim.job
        return [(job.tenant,), (job.tenant, job.type), (job.tenant, job.type, job.read()["key"])]

    def begin(self, claim: Claim) -> None:
        for scope in self._limit_scopes(claim):
            self._now[scope] += 1
            self.most[scope] = max(self.most[scope], self._now[scope])

    def end(self, claim: Claim) -> None:
        self._now.subtract(self._limit_scopes(claim))


@pytest.mark.parametrize("claim_limit", [1, 3])
async def test_many_claimers_never_exceed_any_limit_and_finish_every_job(bench: Bench, claim_limit: int) -> None:
    tenants = {}
    for slug, most in (("small", 4), ("large", 9)):
        tenants[(await bench.tenants.create(slug, limits=Limits(max_running_jobs=most))).id] = most
    await bench.jobs.define(Definition(type="a", max_running=3))
    await bench.jobs.define(Definition(type="b", max_running=6, limit_key="{key}", max_running_per_key=2))
    chance = random.Random(claim_limit)
    orders = [
        new_job(tenant, type, {"key": chance.choice("xyz")}, priority=chance.randint(1, 5))
        for tenant in tenants
        for type in "abc"
        for _ in range(60)
    ]
    await bench.jobs.enqueue_many(orders)
    running, unfinished = RunningJobs(), len(orders)
    endings = [bench.jobs.complete, bench.jobs.complete, bench.jobs.release]

    async def work(number: int) -> None:
        nonlocal unfinished
        chance_of_worker = random.Random(number)
        while unfinished > 0:
            claims = await bench.jobs.claim(f"w{number}", ["a", "b", "c"], limit=claim_limit, wait_seconds=0.5)
            for one in claims:
                running.begin(one)
            for one in claims:
                if chance_of_worker.random() < 0.2:
                    await bench.jobs.heartbeat(one.job.id, one.fence)
                running.end(one)
                settled = await chance_of_worker.choice(endings)(one)
                unfinished -= settled.status is JobStatus.SUCCEEDED

    async def check_running() -> None:
        while unfinished > 0:
            for tenant, most in tenants.items():
                assert (await bench.jobs.summary(tenant)).running <= most

    async with asyncio.TaskGroup() as group:
        group.create_task(check_running())
        for number in range(CLAIMERS):
            group.create_task(work(number))
    allowed = {"a": 3, "b": 6, "c": 9}
    for scope, most in running.most.items():
        tenant, *type_and_key = scope
        assert most <= tenants[tenant]
        assert most <= allowed[type_and_key[0]] if type_and_key else True
        assert most <= 2 if len(type_and_key) == 2 and type_and_key[0] == "b" else True
    counts = [(await bench.jobs.summary(tenant)).counts for tenant in tenants]
    assert [counted[JobStatus.SUCCEEDED] for counted in counts] == [180, 180]


async def test_jobs_of_a_key_limited_to_one_start_in_order(bench: Bench) -> None:
    await set_limit(bench, "key", 1)
    jobs = [await bench.make_job(payload={"key": f"k{n % 5}"}) for n in range(60)]
    started: list[Job] = []

    async def work(service: Jobs, number: int) -> None:
        while len(started) < len(jobs):
            for claim in await service.claim(f"w{number}", ["noop"], limit=2, wait_seconds=0.5):
                started.append(claim.job)
                await service.complete(claim)

    async with asyncio.TaskGroup() as group:
        for number in range(CLAIMERS):
            group.create_task(work(bench.jobs, number))
    by_key = sorted(started, key=lambda job: str(job.read()["key"]))
    for _, own in groupby(by_key, key=lambda job: str(job.read()["key"])):
        in_turn = ids(list(own))
        assert in_turn == sorted(in_turn)
