"""Limits: no more jobs run at once than the tenant, the type and the key allow, and nobody else waits for it."""

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


async def limit(bench: Bench, kind: str, most: int, *, type: str = "noop") -> None:
    """Let only so many jobs run at once: of the tenant, of the type, or of each key of the type."""
    if kind == "tenant":
        await bench.tenants.change(bench.tenant, limits=Limits(max_running_jobs=most))
    elif kind == "type":
        await bench.jobs.define(Definition(type=type, max_running=most))
    else:
        await bench.jobs.define(Definition(type=type, limit_key="{key}", max_running_per_key=most))


async def fill(bench: Bench, jobs: int, type: str = "noop", *, key: str = "k", tenant: str | None = None) -> None:
    await bench.jobs.enqueue_many([new_job(tenant or bench.tenant, type, {"key": key}) for _ in range(jobs)])


async def claim(bench: Bench, *types: str, limit: int = 100, tenant: str | None = None) -> list[Claim]:
    return await bench.jobs.claim("worker", types or ["noop"], limit=limit, tenant=tenant)


def ids(jobs: Sequence[Claim | Job]) -> list[str]:
    return [known.job.id if isinstance(known, Claim) else known.id for known in jobs]


# -- how many run -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at_once", [1, 2, 100])
async def test_no_more_jobs_run_than_the_limit_says(bench: Bench, kind: str, at_once: int) -> None:
    await limit(bench, kind, 3)
    await fill(bench, 10)
    claims = [taken for _ in range(5) for taken in await claim(bench, limit=at_once)]
    assert len(claims) == 3
    assert (await bench.jobs.summary(bench.tenant)).running == 3


async def lose(bench: Bench, taken: Claim) -> None:
    bench.clock.advance(seconds=LEASE_SECONDS)
    await bench.jobs.maintain()


async def cancel_and_release(bench: Bench, taken: Claim) -> None:
    await bench.jobs.cancel(taken.job.tenant, taken.job.id)
    await bench.jobs.release(taken)


ENDS: dict[str, Callable[[Bench, Claim], Awaitable[object]]] = {
    "done": lambda bench, taken: bench.jobs.complete(taken),
    "failed": lambda bench, taken: bench.jobs.fail(taken, "again"),
    "dead": lambda bench, taken: bench.jobs.fail(taken, "no", retry=False),
    "snoozed": lambda bench, taken: bench.jobs.snooze(taken, timedelta(hours=1)),
    "released": lambda bench, taken: bench.jobs.release(taken),
    "canceled": cancel_and_release,
    "lost": lose,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ENDS)
async def test_however_a_job_ends_the_next_one_starts(bench: Bench, kind: str, end: str) -> None:
    await limit(bench, kind, 1)
    await fill(bench, 3)
    (taken,) = await claim(bench)
    assert await claim(bench) == []
    await ENDS[end](bench, taken)
    assert len(await claim(bench)) == 1
    assert await claim(bench) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ENDS)
async def test_a_waiting_claim_is_woken_when_a_job_makes_room(bench: Bench, kind: str, end: str) -> None:
    await limit(bench, kind, 1)
    await fill(bench, 2)
    (taken,) = await claim(bench)
    store = WatchedStore(bench.store)
    waiting = asyncio.create_task(store.jobs().claim("waiter", ["noop"], wait_seconds=60))
    await store.found_nothing(1)
    await ENDS[end](bench, taken)
    async with asyncio.timeout(30):
        assert len(await waiting) == 1


async def test_asking_a_running_job_to_stop_makes_no_room(bench: Bench) -> None:
    await limit(bench, "type", 1)
    await fill(bench, 2)
    (taken,) = await claim(bench)
    await bench.jobs.cancel(bench.tenant, taken.job.id)
    assert await claim(bench) == []


async def test_a_renewed_lease_keeps_its_place(bench: Bench) -> None:
    await limit(bench, "type", 1)
    await fill(bench, 2)
    (taken,) = await claim(bench)
    for _ in range(3):
        bench.clock.advance(seconds=LEASE_SECONDS - 1)
        await bench.jobs.heartbeat(taken.job.id, taken.fence)
        assert await claim(bench) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_claims_at_once_share_the_room(bench: Bench, kind: str) -> None:
    await limit(bench, kind, 5)
    await fill(bench, 50)
    answers = await asyncio.gather(*(bench.jobs.claim(f"w{n}", ["noop"], limit=2) for n in range(CLAIMERS)))
    assert sum(map(len, answers)) == 5


@pytest.mark.parametrize("kind", KINDS)
async def test_limits_hold_for_what_runs_across_a_restart(engine: str, tmp_path: Path, kind: str) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        await limit(bench, kind, 2)
        await fill(bench, 5)
        taken = (await claim(bench, limit=1))[0]
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        await bench.jobs.heartbeat(taken.job.id, taken.fence)
        assert len(await claim(bench)) == 1
        await bench.jobs.complete(taken)
        assert len(await claim(bench)) == 1


# -- whom a limit is for ------------------------------------------------------------------------------------


async def test_the_types_of_a_tenant_share_its_limit(bench: Bench) -> None:
    await limit(bench, "tenant", 3)
    for type in "ab":
        await fill(bench, 5, type)
    assert len(await claim(bench, "a", limit=2)) == 2
    assert len(await claim(bench, "b")) == 1
    assert await claim(bench, "a") == await claim(bench, "a", "b") == []


async def test_a_waiting_claim_of_another_type_is_woken_when_the_tenant_has_room(bench: Bench) -> None:
    await limit(bench, "tenant", 1)
    held = await bench.make_claim("a")
    job = await bench.make_job("b")
    store = WatchedStore(bench.store)
    waiting = asyncio.create_task(store.jobs().claim("waiter", ["b"], wait_seconds=60))
    await store.found_nothing(1)
    await bench.jobs.complete(held)
    async with asyncio.timeout(30):
        assert ids(await waiting) == [job.id]


async def test_the_limit_of_a_tenant_keeps_no_other_waiting(bench: Bench) -> None:
    other = (await bench.tenants.create("other")).id
    await limit(bench, "tenant", 1)
    await fill(bench, 50)
    await fill(bench, 20, tenant=other)
    taken = [one.job.tenant for _ in range(21) for one in await claim(bench, limit=1)]
    assert Counter(taken) == {bench.tenant: 1, other: 20}


async def test_a_tenant_that_may_run_nothing_runs_nothing(bench: Bench) -> None:
    await limit(bench, "tenant", 0)
    await fill(bench, 2)
    assert await claim(bench) == []


@pytest.mark.parametrize("kind", ["type", "key"])
async def test_a_definition_for_all_limits_each_tenant_by_itself(bench: Bench, kind: str) -> None:
    other = (await bench.tenants.create("other")).id
    await limit(bench, kind, 2)
    for tenant in (bench.tenant, other):
        await fill(bench, 5, tenant=tenant)
    assert Counter(taken.job.tenant for taken in await claim(bench)) == {bench.tenant: 2, other: 2}


async def test_a_tenants_own_definition_limits_only_it(bench: Bench) -> None:
    other = (await bench.tenants.create("other")).id
    await limit(bench, "type", 1)
    await bench.jobs.define(Definition(type="noop", tenant=other, max_running=3))
    for tenant in (bench.tenant, other):
        await fill(bench, 5, tenant=tenant)
    assert Counter(taken.job.tenant for taken in await claim(bench)) == {bench.tenant: 1, other: 3}


async def test_a_limited_type_keeps_no_other_waiting(bench: Bench) -> None:
    await limit(bench, "type", 1, type="a")
    for type in "ab":
        await fill(bench, 5, type)
    assert Counter(taken.job.type for taken in await claim(bench, "a", "b")) == {"a": 1, "b": 5}


async def test_all_limits_hold_together(bench: Bench) -> None:
    await limit(bench, "tenant", 5)
    await bench.jobs.define(Definition(type="a", max_running=3, limit_key="{key}", max_running_per_key=2))
    for key in "xyz":
        await fill(bench, 4, "a", key=key)
    await fill(bench, 4, "b")
    taken = await claim(bench, "a")
    assert Counter(claim.job.read()["key"] for claim in taken) == {"x": 2, "y": 1}
    assert len(await claim(bench, "a", "b")) == 2


# -- keys ---------------------------------------------------------------------------------------------------


async def test_each_key_has_room_of_its_own(bench: Bench) -> None:
    await limit(bench, "key", 2)
    for key in "xyz":
        await fill(bench, 5, key=key)
    taken = await claim(bench)
    assert Counter(claim.job.read()["key"] for claim in taken) == {"x": 2, "y": 2, "z": 2}
    await bench.jobs.complete(next(claim for claim in taken if claim.job.read()["key"] == "y"))
    assert [claim.job.read()["key"] for claim in await claim(bench)] == ["y"]


async def test_jobs_without_the_key_are_not_limited_by_it(bench: Bench) -> None:
    await limit(bench, "key", 1)
    payloads: list[object] = [None, {}, [], "k", {"a": 1}]
    await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", payload) for payload in payloads])
    assert len(await claim(bench)) == 5


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
async def test_the_key_is_made_of_parts_of_the_payload(
    bench: Bench, template: str, same: list[object], other: object
) -> None:
    await bench.jobs.define(Definition(type="noop", limit_key=template, max_running_per_key=1))
    jobs = [await bench.make_job(payload=payload) for payload in (*same, other)]
    assert ids(await claim(bench)) == [jobs[0].id, jobs[-1].id]


async def test_a_job_keeps_the_key_it_got(bench: Bench) -> None:
    await bench.jobs.define(Definition(type="noop", limit_key="{a}", max_running_per_key=1))
    before = [await bench.make_job(payload={"a": 1, "b": n}) for n in range(2)]
    await bench.jobs.define(Definition(type="noop", limit_key="{b}", max_running_per_key=1))
    after = [await bench.make_job(payload={"a": 1, "b": n + 5}) for n in range(2)]
    taken = await claim(bench)
    assert ids(taken) == ids([before[0], *after])
    await bench.jobs.complete(taken[0])
    (last,) = await claim(bench)
    await bench.jobs.retry(bench.tenant, before[0].id)
    assert (last.job.id, await claim(bench)) == (before[1].id, [])


async def test_the_oldest_waiting_job_is_told_over_all_keys(bench: Bench) -> None:
    await limit(bench, "key", 1)
    for key in "zxy":
        await fill(bench, 2, key=key)
        bench.clock.advance(seconds=10)
    assert (await bench.jobs.summary(bench.tenant)).oldest_queued_seconds == 30


# -- the order of what has room -----------------------------------------------------------------------------


async def test_priority_is_strict_among_work_that_has_room(bench: Bench) -> None:
    await limit(bench, "key", 1)
    chance = random.Random(3)
    jobs = [
        await bench.make_job(payload={"key": chance.choice("wxyz")}, priority=chance.randint(1, 5)) for _ in range(40)
    ]
    waiting = sorted(jobs, key=lambda job: (job.priority, job.run_at, job.id))
    while waiting:
        first_of_key = {job.read()["key"]: job.id for job in reversed(waiting)}
        taken = await claim(bench, limit=3) + await claim(bench)
        assert ids(taken) == [job.id for job in waiting if job.id in first_of_key.values()]
        for one in taken:
            await bench.jobs.complete(one)
        waiting = [job for job in waiting if job.id not in ids(taken)]


async def test_work_of_high_priority_without_room_is_passed_over(bench: Bench) -> None:
    await limit(bench, "type", 1, type="a")
    await bench.make_claim("a")
    for type, priority in (("a", 1), ("b", 5)):
        await bench.make_job(type, priority=priority)
    assert [claim.job.type for claim in await claim(bench, "a", "b", limit=1)] == ["b"]


# -- limits that change -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_below_a_lowered_limit_nothing_starts_until_enough_has_ended(bench: Bench, kind: str) -> None:
    await limit(bench, kind, 4)
    await fill(bench, 10)
    taken = await claim(bench)
    await limit(bench, kind, 2)
    for running in (4, 3, 2):
        assert await claim(bench) == []
        assert (await bench.jobs.summary(bench.tenant)).running == running
        await bench.jobs.complete(taken.pop())
    assert len(await claim(bench)) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("most", [3, None])
async def test_waiting_claims_are_woken_by_a_raised_limit(bench: Bench, kind: str, most: int | None) -> None:
    await limit(bench, kind, 1)
    await fill(bench, 3)
    await claim(bench)
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    waiting = [asyncio.create_task(jobs.claim(f"w{n}", ["noop"], wait_seconds=60)) for n in range(2)]
    await store.found_nothing(2)
    if most is not None:
        await limit(bench, kind, most)
    elif kind == "tenant":
        await bench.tenants.change(bench.tenant, limits=Limits())
    else:
        await bench.jobs.define(Definition(type="noop"))
    async with asyncio.timeout(30):
        assert [len(await one) for one in waiting] == [1, 1]


async def test_a_waiting_claim_is_woken_by_a_tenants_own_definition(bench: Bench) -> None:
    await limit(bench, "type", 1)
    await fill(bench, 2)
    await claim(bench)
    store = WatchedStore(bench.store)
    waiting = asyncio.create_task(store.jobs().claim("w", ["noop"], wait_seconds=60))
    await store.found_nothing(1)
    await bench.jobs.define(Definition(type="noop", tenant=bench.tenant))
    async with asyncio.timeout(30):
        assert len(await waiting) == 1


async def test_waiting_claims_are_woken_when_a_type_is_resumed(bench: Bench) -> None:
    await fill(bench, 2)
    await bench.jobs.pause(bench.tenant, "noop")
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    waiting = [asyncio.create_task(jobs.claim(f"w{n}", ["noop"], wait_seconds=60)) for n in range(2)]
    await store.found_nothing(2)
    await bench.jobs.resume(bench.tenant, "noop")
    async with asyncio.timeout(30):
        assert [len(await one) for one in waiting] == [1, 1]


# -- many at once -------------------------------------------------------------------------------------------


class Running:
    """What surely runs: from the answer of the claim until the job is about to be settled."""

    def __init__(self) -> None:
        self.most: Counter[tuple[str, ...]] = Counter()
        self._now: Counter[tuple[str, ...]] = Counter()

    @staticmethod
    def _bounds(taken: Claim) -> list[tuple[str, ...]]:
        job = taken.job
        return [(job.tenant,), (job.tenant, job.type), (job.tenant, job.type, job.read()["key"])]

    def begin(self, taken: Claim) -> None:
        for bound in self._bounds(taken):
            self._now[bound] += 1
            self.most[bound] = max(self.most[bound], self._now[bound])

    def end(self, taken: Claim) -> None:
        self._now.subtract(self._bounds(taken))


@pytest.mark.parametrize("at_once", [1, 3])
async def test_many_claimers_never_exceed_any_limit_and_leave_nothing_behind(bench: Bench, at_once: int) -> None:
    tenants = {}
    for slug, most in (("small", 4), ("large", 9)):
        tenants[(await bench.tenants.create(slug, limits=Limits(max_running_jobs=most))).id] = most
    await bench.jobs.define(Definition(type="a", max_running=3))
    await bench.jobs.define(Definition(type="b", max_running=6, limit_key="{key}", max_running_per_key=2))
    chance = random.Random(at_once)
    orders = [
        new_job(tenant, type, {"key": chance.choice("xyz")}, priority=chance.randint(1, 5))
        for tenant in tenants
        for type in "abc"
        for _ in range(60)
    ]
    await bench.jobs.enqueue_many(orders)
    running, left = Running(), len(orders)
    endings = [bench.jobs.complete, bench.jobs.complete, bench.jobs.release]

    async def work(number: int) -> None:
        nonlocal left
        own = random.Random(number)
        while left > 0:
            taken = await bench.jobs.claim(f"w{number}", ["a", "b", "c"], limit=at_once, wait_seconds=0.5)
            for one in taken:
                running.begin(one)
            for one in taken:
                if own.random() < 0.2:
                    await bench.jobs.heartbeat(one.job.id, one.fence)
                running.end(one)
                settled = await own.choice(endings)(one)
                left -= settled.status is JobStatus.SUCCEEDED

    async def watch() -> None:
        while left > 0:
            for tenant, most in tenants.items():
                assert (await bench.jobs.summary(tenant)).running <= most

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        for number in range(CLAIMERS):
            group.create_task(work(number))
    allowed = {"a": 3, "b": 6, "c": 9}
    for bound, most in running.most.items():
        tenant, *rest = bound
        assert most <= tenants[tenant]
        assert most <= allowed[rest[0]] if rest else True
        assert most <= 2 if len(rest) == 2 and rest[0] == "b" else True
    counts = [(await bench.jobs.summary(tenant)).counts for tenant in tenants]
    assert [counted[JobStatus.SUCCEEDED] for counted in counts] == [180, 180]


async def test_one_key_at_a_time_runs_in_its_order(bench: Bench) -> None:
    await limit(bench, "key", 1)
    jobs = [await bench.make_job(payload={"key": f"k{n % 5}"}) for n in range(60)]
    started: list[Job] = []

    async def work(service: Jobs, number: int) -> None:
        while len(started) < len(jobs):
            for taken in await service.claim(f"w{number}", ["noop"], limit=2, wait_seconds=0.5):
                started.append(taken.job)
                await service.complete(taken)

    async with asyncio.TaskGroup() as group:
        for number in range(CLAIMERS):
            group.create_task(work(bench.jobs, number))
    by_key = sorted(started, key=lambda job: str(job.read()["key"]))
    for _, own in groupby(by_key, key=lambda job: str(job.read()["key"])):
        in_turn = ids(list(own))
        assert in_turn == sorted(in_turn)
