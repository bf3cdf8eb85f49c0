"""Orders of dependent jobs: what one call may contain, and which calls are refused."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec

from ingot.jobs import DependencyCycle, ParentNotFound
from ingot.jobs.job_options import new_job
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from tests.conformance.dependency_fixture import BLOCKED, QUEUED, SUCCEEDED
from tests.conformance.job_endings import counted, end, statuses
from tests.conformance.snapshots import refuses, refuses_each, snapshot
from tests.factories import Bench


async def test_jobs_may_wait_for_jobs_of_the_same_call_in_any_order(bench: Bench) -> None:
    parent = new_job(bench.tenant, "first")
    child = new_job(bench.tenant, "second", after=[parent.id])
    made = await bench.jobs.enqueue_many([child, parent])
    assert [(each.created, each.job.status) for each in made] == [(True, BLOCKED), (True, QUEUED)]
    await end(bench, made[1].job)
    assert await statuses(bench, made[0].job) == [QUEUED]


async def test_a_parent_listed_twice_counts_once(bench: Bench) -> None:
    parent = await bench.make_job("first")
    child = await bench.make_job("second", after=[parent.id, parent.id])
    assert child.after == (parent.id,)
    await end(bench, parent)
    assert await statuses(bench, child) == [QUEUED]


async def test_a_resent_order_returns_the_same_blocked_job(bench: Bench) -> None:
    parent = new_job(bench.tenant, "first")
    child = new_job(bench.tenant, "second", after=[parent.id])
    await bench.jobs.enqueue_many([parent, child])
    before = await snapshot(bench)
    again = await bench.jobs.enqueue_many([parent, child])
    assert [each.job.status for each in again] == [QUEUED, BLOCKED]
    assert await snapshot(bench) == before
    await end(bench, again[0].job)
    assert await statuses(bench, again[1].job) == [QUEUED]


async def test_an_idempotency_key_returns_the_blocked_job(bench: Bench) -> None:
    parent = await bench.make_job("first")
    child = await bench.make_job("second", after=[parent.id], idempotency_key="key")
    again = await bench.jobs.enqueue(bench.tenant, "second", after=[parent.id], idempotency_key="key")
    assert (again.created, again.job) == (False, child)


async def test_a_call_with_an_unknown_parent_is_refused_as_a_whole(bench: Bench) -> None:
    parent = await bench.make_job("first")
    async with refuses(bench, ParentNotFound):
        await bench.jobs.enqueue(bench.tenant, "second", after=[parent.id, new_id()])
    async with refuses(bench, ParentNotFound):
        await bench.jobs.enqueue_many(
            [
                new_job(bench.tenant, "second", after=[parent.id], batch="batch", dedupe_key="key"),
                new_job(bench.tenant, "second", after=[new_id()], idempotency_key="key"),
            ]
        )
    await bench.make_job("second", after=[parent.id], dedupe_key="key", idempotency_key="key")


async def test_a_parent_of_another_tenant_is_treated_as_unknown(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    stranger = await bench.make_job("first", tenant=other.id)
    async with refuses(bench, ParentNotFound):
        await bench.make_job("second", after=[stranger.id])
    inside = new_job(other.id, "first")
    async with refuses(bench, ParentNotFound):
        await bench.jobs.enqueue_many([inside, new_job(bench.tenant, "second", after=[inside.id])])


async def test_a_refused_call_does_not_affect_concurrent_calls(bench: Bench) -> None:
    parent = await bench.make_job("first")
    calls = [bench.jobs.enqueue(bench.tenant, "second", n, after=[parent.id if n % 2 else new_id()]) for n in range(10)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) is ParentNotFound for answer in answers] == [n % 2 == 0 for n in range(10)]
    assert await counted(bench) == {QUEUED: 1, BLOCKED: 5}
    await end(bench, parent)
    assert await counted(bench) == {SUCCEEDED: 1, QUEUED: 5}


async def test_a_cycle_of_orders_is_refused(bench: Bench) -> None:
    ids = [new_id() for _ in range(3)]
    ring = [
        msgspec.structs.replace(new_job(bench.tenant, "noop", after=[ids[n - 1]]), id=ids[n]) for n in range(len(ids))
    ]
    async with refuses(bench, DependencyCycle):
        await bench.jobs.enqueue_many(ring)
    async with refuses(bench, DependencyCycle):
        await bench.jobs.enqueue_many([msgspec.structs.replace(ring[0], after=(ids[0],))])


BAD_OPTIONS: dict[str, dict[str, Any]] = {
    "after that is one id": {"after": new_id()},
    "after that is a number": {"after": 5},
    "after that holds no ids": {"after": ["first"]},
    "after that holds numbers": {"after": [1]},
    "a thousand and one parents": {"after": [new_id() for _ in range(1001)]},
    "on_dead that is not known": {"after": [new_id()], "on_dead": "hope"},
    "on_dead that is not a string": {"after": [new_id()], "on_dead": 1},
}


async def test_invalid_dependency_options_are_refused(bench: Bench) -> None:
    calls = {name: partial(bench.make_job, "second", **options) for name, options in BAD_OPTIONS.items()}
    no_ids = calls.pop("after that holds no ids")
    await refuses_each(bench, InvalidInput, calls)
    await refuses_each(bench, ParentNotFound, {"after that holds no ids": no_ids})
    assert await counted(bench) == {}
