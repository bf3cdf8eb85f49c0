"""Jobs that wait for other jobs: when they start, when they are canceled, and that none is forgotten."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from ingot.jobs import Done, JobStatus, NewJob, OnDead, Settle
from ingot.jobs.job_options import new_job
from ingot.kernel.clock import ManualClock
from tests.conformance.dependency_fixture import BLOCKED, CANCELED, DEAD, QUEUED, SUCCEEDED, events_of
from tests.conformance.job_endings import BAD_ENDS, all_events, counted, end, settle_down, statuses
from tests.factories import LEASE_SECONDS, Bench, open_bench

# -- one parent ---------------------------------------------------------------------------------------------------


async def test_a_job_waits_until_its_parent_has_succeeded(bench: Bench) -> None:
    parent = await bench.make_job("first")
    child = await bench.make_job("second", {"n": 1}, after=[parent.id])
    assert (child.status, child.after, child.on_dead) == (BLOCKED, (parent.id,), OnDead.CANCEL)
    assert await bench.reload(child) == child
    assert await counted(bench) == {BLOCKED: 1, QUEUED: 1}
    assert await bench.jobs.claim("worker", ["second"]) == []
    bench.clock.advance(seconds=1)
    await end(bench, parent)
    assert await counted(bench) == {QUEUED: 1, SUCCEEDED: 1}
    (claim,) = await bench.jobs.claim("worker", ["second"])
    assert (claim.job.id, claim.job.after, claim.job.read(), claim.job.run_at) == (
        child.id,
        (parent.id,),
        {"n": 1},
        child.run_at,
    )
    await bench.jobs.complete(claim)
    assert (await bench.reload(child)).after == (parent.id,)
    assert await events_of(bench, child) == [
        ("job.created", "blocked"),
        ("job.updated", "queued"),
        ("job.started", "running"),
        ("job.completed", "succeeded"),
    ]


async def test_a_job_stays_blocked_while_its_parent_will_be_retried(bench: Bench) -> None:
    parent = await bench.make_job("first")
    child = await bench.make_job("second", after=[parent.id])
    (claim,) = await bench.jobs.claim("worker", ["first"])
    await bench.jobs.fail(claim, "not yet")
    await settle_down(bench)
    assert await statuses(bench, parent, child) == [QUEUED, BLOCKED]
    bench.clock.advance(seconds=300)
    await end(bench, parent)
    assert await statuses(bench, child) == [QUEUED]


@pytest.mark.parametrize("status", BAD_ENDS)
async def test_a_dead_or_canceled_parent_cancels_its_dependents(bench: Bench, status: JobStatus) -> None:
    parent = await bench.make_job("first")
    child = await bench.make_job("second", after=[parent.id])
    bench.clock.advance(seconds=1)
    await end(bench, parent, status)
    canceled = await bench.reload(child)
    assert (canceled.status, canceled.finished_at, canceled.attempts) == (CANCELED, bench.clock.now(), 0)
    assert await events_of(bench, child) == [("job.created", "blocked"), ("job.canceled", "canceled")]
    assert await bench.jobs.claim("worker", ["second"]) == []
    ended = {status: 1, CANCELED: 1} if status is DEAD else {CANCELED: 2}
    assert await counted(bench) == ended


@pytest.mark.parametrize("status", [*BAD_ENDS, SUCCEEDED])
async def test_a_job_with_on_dead_run_starts_however_its_parent_ends(bench: Bench, status: JobStatus) -> None:
    parent = await bench.make_job("first")
    child = await bench.make_job("second", after=[parent.id], on_dead=OnDead.RUN)
    assert (child.status, child.on_dead) == (BLOCKED, OnDead.RUN)
    await end(bench, parent, status)
    (claim,) = await bench.jobs.claim("worker", ["second"])
    assert (claim.job.id, claim.job.on_dead) == (child.id, OnDead.RUN)


async def test_a_parent_that_reaches_its_crash_cap_cancels_its_dependents(bench: Bench) -> None:
    parent = await bench.make_job("first")
    child = await bench.make_job("second", after=[parent.id])
    for _ in range(3):
        (claim,) = await bench.jobs.claim("worker", ["first"])
        assert claim.job.id == parent.id
        bench.clock.advance(seconds=LEASE_SECONDS + 10)
        await settle_down(bench)
        bench.clock.advance(seconds=10)
    await settle_down(bench)
    assert await statuses(bench, parent, child) == [DEAD, CANCELED]


async def test_a_running_parent_cancels_its_dependents_only_when_its_cancel_takes_effect(bench: Bench) -> None:
    claim = await bench.make_claim("first")
    child = await bench.make_job("second", after=[claim.job.id])
    await bench.jobs.cancel(bench.tenant, claim.job.id)
    await settle_down(bench)
    assert await statuses(bench, child) == [BLOCKED]
    await bench.jobs.release(claim)
    await settle_down(bench)
    assert await statuses(bench, child) == [CANCELED]


@pytest.mark.parametrize(
    ("status", "on_dead", "expected"),
    [
        (SUCCEEDED, OnDead.CANCEL, QUEUED),
        (DEAD, OnDead.CANCEL, CANCELED),
        (CANCELED, OnDead.CANCEL, CANCELED),
        (DEAD, OnDead.RUN, QUEUED),
        (CANCELED, OnDead.RUN, QUEUED),
    ],
)
async def test_a_parent_that_ended_before_the_enqueue_has_the_same_effect(
    bench: Bench, status: JobStatus, on_dead: OnDead, expected: JobStatus
) -> None:
    parent = await bench.make_job_in(status, "first")
    child = await bench.make_job("second", after=[parent.id], on_dead=on_dead)
    assert child.status is BLOCKED
    await settle_down(bench)
    assert await statuses(bench, child) == [expected]
    assert [name for name, _ in await events_of(bench, child)] == [
        "job.created",
        "job.updated" if expected is QUEUED else "job.canceled",
    ]


# -- many parents, many children ----------------------------------------------------------------------------------


async def test_a_chain_of_jobs_runs_one_after_the_other(bench: Bench) -> None:
    orders: list[NewJob] = []
    for n in range(5):
        orders.append(new_job(bench.tenant, "link", n, after=[order.id for order in orders[-1:]]))
    await bench.jobs.enqueue_many(orders)
    assert await counted(bench) == {BLOCKED: 4, QUEUED: 1}
    for n in range(5):
        (claim,) = await bench.jobs.claim("worker", ["link"], limit=10)
        assert claim.job.read() == n
        await bench.jobs.complete(claim)
        await settle_down(bench)
    assert await counted(bench) == {SUCCEEDED: 5}


async def test_the_last_job_of_a_diamond_waits_for_both_branches(bench: Bench) -> None:
    top = await bench.make_job("top")
    left = await bench.make_job("left", after=[top.id])
    right = await bench.make_job("right", after=[top.id])
    bottom = await bench.make_job("bottom", after=[right.id, left.id])
    assert bottom.after == tuple(sorted([left.id, right.id]))
    await end(bench, top)
    assert await statuses(bench, left, right, bottom) == [QUEUED, QUEUED, BLOCKED]
    await end(bench, right)
    assert await statuses(bench, bottom) == [BLOCKED]
    assert await bench.jobs.claim("worker", ["bottom"]) == []
    await end(bench, left)
    assert await statuses(bench, bottom) == [QUEUED]
    assert (await bench.reload(bottom)).after == tuple(sorted([left.id, right.id]))


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("status", BAD_ENDS)
async def test_one_unsuccessful_parent_of_several_cancels_the_job(bench: Bench, first: int, status: JobStatus) -> None:
    parents = [await bench.make_job(f"parent-{n}") for n in range(3)]
    child = await bench.make_job("child", after=[job.id for job in parents])
    await end(bench, parents[first], status)
    assert await statuses(bench, child) == [CANCELED]
    for job in parents:
        if job is not parents[first]:
            await end(bench, job)
    assert await statuses(bench, child) == [CANCELED]
    assert [name for name, _ in await events_of(bench, child)] == ["job.created", "job.canceled"]


async def test_a_job_with_on_dead_run_starts_after_all_its_parents_ended(bench: Bench) -> None:
    parents = [await bench.make_job(f"parent-{n}") for n in range(3)]
    child = await bench.make_job("child", after=[job.id for job in parents], on_dead=OnDead.RUN)
    for job, status in zip(parents, [DEAD, CANCELED, SUCCEEDED], strict=True):
        assert await statuses(bench, child) == [BLOCKED]
        await end(bench, job, status)
    assert await statuses(bench, child) == [QUEUED]


async def test_a_job_waits_for_its_unfinished_parents_when_others_have_ended(bench: Bench) -> None:
    old = await bench.make_job_in(SUCCEEDED, "old")
    new = await bench.make_job("new")
    child = await bench.make_job("child", after=[old.id, new.id])
    await settle_down(bench)
    assert await statuses(bench, child) == [BLOCKED]
    await end(bench, new)
    assert await statuses(bench, child) == [QUEUED]


async def test_parents_that_end_in_one_call_queue_their_dependent_once(bench: Bench) -> None:
    parents = [await bench.make_job("parent") for _ in range(20)]
    child = await bench.make_job("child", after=[job.id for job in parents])
    claims = await bench.jobs.claim("worker", ["parent"], limit=20)
    await bench.jobs.settle_many([Settle(job_id=claim.job.id, fence=claim.fence, outcome=Done()) for claim in claims])
    await settle_down(bench)
    assert [name for name, _ in await events_of(bench, child)] == ["job.created", "job.updated"]
    assert await counted(bench) == {SUCCEEDED: 20, QUEUED: 1}


async def test_parents_that_end_concurrently_queue_their_dependent_once(bench: Bench) -> None:
    for n in range(10):
        parents = [await bench.make_job(f"parent-{n}") for _ in range(4)]
        child = await bench.make_job(f"child-{n}", after=[job.id for job in parents])
        claims = await bench.jobs.claim("worker", [f"parent-{n}"], limit=4)
        await asyncio.gather(*(bench.jobs.complete(claim) for claim in claims))
        await settle_down(bench)
        assert [name for name, _ in await events_of(bench, child)] == ["job.created", "job.updated"]


async def test_a_cancel_propagates_to_all_descendants(bench: Bench) -> None:
    root = new_job(bench.tenant, "node")
    tree = [root]
    for n in range(1, 200):
        tree.append(new_job(bench.tenant, "node", after=[tree[(n - 1) // 3].id]))
    chain = [root]
    for _ in range(200):
        chain.append(new_job(bench.tenant, "link", after=[chain[-1].id]))
    anyway = new_job(bench.tenant, "anyway", after=[chain[-1].id], on_dead=OnDead.RUN)
    after_it = new_job(bench.tenant, "after", after=[anyway.id])
    await bench.jobs.enqueue_many([*tree, *chain[1:], anyway, after_it])
    await bench.jobs.cancel(bench.tenant, root.id)
    await settle_down(bench)
    assert await counted(bench) == {CANCELED: 400, QUEUED: 1, BLOCKED: 1}
    names = [event.name for event in await all_events(bench)]
    assert (names.count("job.canceled"), names.count("job.updated")) == (400, 1)


@pytest.mark.long
@pytest.mark.parametrize("status", [SUCCEEDED, CANCELED])
async def test_ten_thousand_jobs_wait_for_one_parent(bench: Bench, status: JobStatus) -> None:
    parent = await bench.make_job("first")
    for _ in range(10):
        await bench.jobs.enqueue_many([new_job(bench.tenant, "second", after=[parent.id]) for _ in range(1000)])
    assert await counted(bench) == {QUEUED: 1, BLOCKED: 10_000}
    await end(bench, parent, status)
    if status is CANCELED:
        assert await counted(bench) == {CANCELED: 10_001}
        return
    assert await counted(bench) == {SUCCEEDED: 1, QUEUED: 10_000}
    claimed: set[str] = set()
    while claims := await bench.jobs.claim("worker", ["second"], limit=1000):
        claimed |= {claim.job.id for claim in claims}
    assert len(claimed) == 10_000


@pytest.mark.long
async def test_one_job_waits_for_a_thousand_parents(bench: Bench) -> None:
    parents = [new_job(bench.tenant, "parent") for _ in range(1000)]
    child = new_job(bench.tenant, "child", after=[order.id for order in parents])
    await bench.jobs.enqueue_many(parents)
    (enqueued,) = await bench.jobs.enqueue_many([child])
    claims = await bench.jobs.claim("worker", ["parent"], limit=1000)
    for start in (0, 500):
        some = claims[start : start + 500]
        assert await statuses(bench, enqueued.job) == [BLOCKED]
        await bench.jobs.settle_many([Settle(job_id=c.job.id, fence=c.fence, outcome=Done()) for c in some])
        await settle_down(bench)
    assert await statuses(bench, enqueued.job) == [QUEUED]
    assert len((await bench.reload(enqueued.job)).after) == 1000


async def test_no_job_starts_before_its_parents_have_completed(bench: Bench) -> None:
    orders: list[NewJob] = []
    for n in range(60):
        orders.append(new_job(bench.tenant, "noop", n, after={orders[n // d].id for d in (2, 3, 5) if n // d < n}))
    parents = {order.id: order.after for order in orders}
    await bench.jobs.enqueue_many(orders)

    async def work(name: str) -> None:
        while (await counted(bench)).keys() != {SUCCEEDED}:
            for claim in await bench.jobs.claim(name, ["noop"], limit=3):
                await bench.jobs.complete(claim)
            await bench.jobs.maintain()

    await asyncio.gather(*(work(f"w{n}") for n in range(4)))
    completed: set[str] = set()
    for event in await all_events(bench):
        job_id = msgspec.json.decode(event.data)["id"]
        if event.name == "job.started":
            assert completed.issuperset(parents[job_id])
        if event.name == "job.completed":
            completed.add(job_id)
    assert len(completed) == 60


# -- waiting claims, restarts and other processes -----------------------------------------------------------------


async def test_a_waiting_claim_is_woken_when_a_blocked_job_is_queued(bench: Bench) -> None:
    parent = await bench.make_job("first")
    child = await bench.make_job("second", after=[parent.id])
    waiting = asyncio.create_task(bench.jobs.claim("worker", ["second"], wait_seconds=20))
    await asyncio.sleep(0)
    (claim,) = await bench.jobs.claim("other", ["first"])
    await bench.jobs.complete(claim)
    assert [claim.job.id for claim in await waiting] == [child.id]


async def test_dependents_are_processed_after_a_restart(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        parents = [await bench.make_job(f"parent-{n}") for n in range(2)]
        both = await bench.make_job("both", after=[job.id for job in parents])
        for _ in range(3):
            await bench.jobs.enqueue_many([new_job(bench.tenant, "many", after=[parents[0].id]) for _ in range(900)])
        (claim,) = await bench.jobs.claim("worker", ["parent-0"])
        await bench.jobs.complete(claim)
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        await settle_down(bench)
        assert await counted(bench) == {SUCCEEDED: 1, QUEUED: 2701, BLOCKED: 1}
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        await end(bench, parents[1])
        assert await statuses(bench, both) == [QUEUED]


async def test_claims_process_remaining_dependents(bench: Bench) -> None:
    parent = await bench.make_job("first")
    for _ in range(3):
        await bench.jobs.enqueue_many([new_job(bench.tenant, "second", after=[parent.id]) for _ in range(900)])
    (claim,) = await bench.jobs.claim("worker", ["first"])
    await bench.jobs.complete(claim)
    claimed: set[str] = set()
    while claims := await bench.jobs.claim("worker", ["second"], limit=1000):
        claimed |= {claim.job.id for claim in claims}
    assert len(claimed) == 2700


@pytest.mark.postgres
async def test_two_processes_that_end_two_parents_at_once_move_their_dependent_once(tmp_path: Path) -> None:
    folder, clock = tmp_path / "data", ManualClock()
    async with open_bench("postgres", folder, clock) as one, open_bench("postgres", folder, clock) as two:
        for n in range(20):
            parents = [await one.make_job(f"left-{n}"), await one.make_job(f"right-{n}")]
            on_dead = OnDead.RUN if n % 2 else OnDead.CANCEL
            child = await one.make_job(f"child-{n}", after=[job.id for job in parents], on_dead=on_dead)
            left, right = await one.jobs.claim("one", [f"left-{n}", f"right-{n}"], limit=2)
            fail = n % 4 > 1
            await asyncio.gather(
                one.jobs.complete(left),
                two.jobs.fail(right, "broken", retry=False) if fail else two.jobs.complete(right),
            )
            await asyncio.gather(settle_down(one), settle_down(two))
            will_be_canceled = fail and on_dead is OnDead.CANCEL
            assert await statuses(one, child) == [CANCELED if will_be_canceled else QUEUED]
            names = [name for name, _ in await events_of(one, child)]
            assert names == ["job.created", "job.canceled" if will_be_canceled else "job.updated"]
