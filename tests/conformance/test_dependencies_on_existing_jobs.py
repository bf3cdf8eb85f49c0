"""Jobs that wait for orders answered by existing jobs, and for jobs that were removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ingot.identity.model import Limits
from ingot.jobs import Definition, JobStatus
from ingot.jobs.errors import DependencyCycle, ParentNotFound
from ingot.jobs.job_options import new_job
from ingot.kernel.clock import ManualClock
from ingot.kernel.errors import InvalidInput
from tests.conformance.job_endings import end, settle_down, statuses
from tests.conformance.snapshots import refuses
from tests.factories import Bench, open_bench

BLOCKED, QUEUED = JobStatus.BLOCKED, JobStatus.QUEUED


@pytest.mark.parametrize("key", [{"idempotency_key": "once"}, {}], ids=["an idempotency key", "reuse"])
@pytest.mark.parametrize("done", [False, True], ids=["parent waits", "parent is done"])
async def test_a_resent_pipeline_waits_for_the_existing_jobs_returned_for_its_orders(
    bench: Bench, key: dict[str, Any], done: bool
) -> None:
    await bench.jobs.define(Definition(type="first", reuse=not key))
    known = await bench.make_job("first", {"n": 1}, **key)
    if done:
        await end(bench, known)
    parent = new_job(bench.tenant, "first", {"n": 1}, **key)
    child = new_job(bench.tenant, "second", after=[parent.id])
    made = await bench.jobs.enqueue_many([child, parent])
    assert [(enqueued.job.id, enqueued.created) for enqueued in made] == [(child.id, True), (known.id, False)]
    assert made[0].job.after == (await bench.reload(made[0].job)).after == (known.id,)
    await settle_down(bench)
    assert await statuses(bench, made[0].job) == [QUEUED if done else BLOCKED]
    if not done:
        await end(bench, known)
        assert await statuses(bench, made[0].job) == [QUEUED]


async def test_two_orders_with_one_idempotency_key_count_as_one_parent(bench: Bench) -> None:
    first, twin = (new_job(bench.tenant, "first", idempotency_key="once") for _ in range(2))
    child = new_job(bench.tenant, "second", after=[twin.id, first.id])
    made = await bench.jobs.enqueue_many([first, twin, child])
    assert [each.created for each in made] == [True, False, True]
    assert made[2].job.after == (first.id,)
    await end(bench, made[0].job)
    assert await statuses(bench, made[2].job) == [QUEUED]


async def test_a_cycle_through_two_orders_with_one_idempotency_key_is_refused(bench: Bench) -> None:
    middle = new_job(bench.tenant, "middle")
    first = new_job(bench.tenant, "first", idempotency_key="once", after=[middle.id])
    twin = new_job(bench.tenant, "first", idempotency_key="once")
    middle = msgspec.structs.replace(middle, after=(twin.id,))
    async with refuses(bench, DependencyCycle):
        await bench.jobs.enqueue_many([first, twin, middle])


async def test_an_order_answered_by_a_job_of_another_tenant_is_no_valid_parent(bench: Bench) -> None:
    other = (await bench.tenants.create("other")).id
    await bench.make_job("first", tenant=other, idempotency_key="once")
    parent = new_job(other, "first", idempotency_key="once")
    async with refuses(bench, ParentNotFound):
        await bench.jobs.enqueue_many([parent, new_job(bench.tenant, "second", after=[parent.id])])


async def test_different_orders_with_the_same_id_are_refused(bench: Bench) -> None:
    first = new_job(bench.tenant, "first")
    second = new_job(bench.tenant, "second", after=[first.id])
    again = msgspec.structs.replace(first, after=(second.id,))
    async with refuses(bench, InvalidInput):
        await bench.jobs.enqueue_many([again, second, first])


async def test_a_job_keeps_the_ids_of_its_removed_parents(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        parent = new_job(bench.tenant, "first")
        made = await bench.jobs.enqueue_many([new_job(bench.tenant, "second", after=[parent.id]), parent])
        await end(bench, made[1].job)
        await bench.jobs.define(Definition(type="first", retention_seconds=1))
        clock.advance(seconds=10)
        assert (await bench.jobs.collect()).removed == 1
        assert (await bench.reload(made[0].job)).after == (parent.id,)
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        stranger = (await bench.tenants.create("stranger")).id
        await bench.make_job("theirs", tenant=stranger)
        assert (await bench.reload(made[0].job)).after == (parent.id,)


async def test_a_running_limit_may_exceed_32_bits(bench: Bench) -> None:
    tenant = (await bench.tenants.create("large", limits=Limits(max_running_jobs=2**40))).id
    await bench.make_job("noop", tenant=tenant)
    (claim,) = await bench.jobs.claim("worker", ["noop"], tenant=tenant)
    await bench.jobs.complete(claim)
