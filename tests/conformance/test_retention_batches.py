"""Batches of retention: how many jobs one pass removes, and what a preview reports."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from ingot.identity import Limits, TenantNotFound
from ingot.jobs import Claim, Definition, Done, JobCollectionResult, JobStatus, RetentionPreview, Settle
from ingot.jobs.job_options import new_job
from ingot.jobs.retention import BATCH_JOBS, JobRetention
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from tests.conformance.retention import FINISHED, HOUR, collect_all, finish, keep, there
from tests.conformance.snapshots import refuses, refuses_each, snapshot
from tests.factories import Bench

# -- limits -------------------------------------------------------------------------------------------------


async def test_a_collection_removes_at_most_limit_jobs_oldest_first(bench: Bench) -> None:
    await keep(bench, HOUR)
    ids = []
    for _ in range(10):
        ids += await finish(bench, 1)
        bench.clock.advance(seconds=1)
    bench.clock.advance(seconds=HOUR)
    results = []
    for remaining in (7, 4, 1, 0):
        results.append(await bench.jobs.collect(3))
        assert await there(bench) == ids[10 - remaining :]
    assert results == [JobCollectionResult(removed=n, more=n == 3) for n in (3, 3, 3, 1)]
    assert await bench.jobs.collect(3) == JobCollectionResult()


async def test_jobs_that_finished_together_are_removed_in_several_passes(bench: Bench) -> None:
    await keep(bench, HOUR, "a")
    await keep(bench, HOUR, "b", keep_history=True)
    await bench.jobs.enqueue_many([new_job(bench.tenant, "ab"[n % 2]) for n in range(40)])
    claims = await bench.jobs.claim("worker", ["a", "b"], limit=40)
    await bench.jobs.settle_many([_done(claim) for claim in claims])
    bench.clock.advance(seconds=HOUR)
    results = [await bench.jobs.collect(7) for _ in range(6)]
    assert [(each.removed, each.more) for each in results] == [(7, True)] * 5 + [(5, False)]
    assert sum(each.kept for each in results) == 20
    assert len((await bench.jobs.history(bench.tenant)).items) == 20


def _done(claim: Claim) -> Settle:
    return Settle(job_id=claim.job.id, fence=claim.fence, outcome=Done())


async def test_a_pass_that_removes_exactly_limit_jobs_reports_no_more(bench: Bench) -> None:
    await keep(bench, HOUR)
    await finish(bench, 4)
    bench.clock.advance(seconds=HOUR)
    assert await bench.jobs.collect(4) == JobCollectionResult(removed=4)


async def test_types_without_retention_do_not_block_a_collection(bench: Bench) -> None:
    await keep(bench, HOUR, "m")
    await finish(bench, 3, "a")
    await finish(bench, 2, "m")
    await finish(bench, 3, "z")
    bench.clock.advance(seconds=HOUR)
    assert await bench.jobs.collect(2) == JobCollectionResult(removed=2)


async def test_the_loop_reports_whether_more_jobs_remain(bench: Bench) -> None:
    await keep(bench, HOUR)
    claims = []
    await bench.jobs.enqueue_many([new_job(bench.tenant, "noop") for _ in range(BATCH_JOBS + 1)])
    while batch := await bench.jobs.claim("worker", ["noop"], limit=1000):
        claims += batch
    await bench.jobs.settle_many([_done(claim) for claim in claims])
    bench.clock.advance(seconds=HOUR)
    loop = JobRetention(bench.store)
    assert await loop.run_once() == JobCollectionResult(removed=BATCH_JOBS, more=True)
    assert await loop.run_once() == JobCollectionResult(removed=1)


async def test_invalid_limits_of_a_collection_are_refused(bench: Bench) -> None:
    await keep(bench, 0)
    await finish(bench, 1)
    limits: list[Any] = [0, -1, 10_001, 1.5, True, "10", None]
    await refuses_each(bench, InvalidInput, {repr(limit): partial(bench.jobs.collect, limit) for limit in limits})


async def test_invalid_retention_seconds_of_a_definition_are_refused(bench: Bench) -> None:
    times: list[Any] = [-1, float("nan"), float("inf"), 10**12, True, "1", [1]]
    bad = {repr(seconds): Definition(type="noop", retention_seconds=seconds) for seconds in times}
    await refuses_each(bench, InvalidInput, {name: partial(bench.jobs.define, one) for name, one in bad.items()})


async def test_invalid_retention_seconds_of_a_tenant_are_refused(bench: Bench) -> None:
    times: list[Any] = [-1, float("nan"), float("inf"), True, "1"]
    bad = {repr(seconds): Limits(retention_seconds=seconds) for seconds in times}
    change = partial(bench.tenants.change, bench.tenant)
    await refuses_each(bench, InvalidInput, {name: partial(change, limits=limits) for name, limits in bad.items()})


@pytest.mark.parametrize("keep_history", [1, "yes", None])
async def test_keep_history_must_be_a_boolean(bench: Bench, keep_history: Any) -> None:
    async with refuses(bench, InvalidInput):
        await bench.jobs.define(Definition(type="noop", keep_history=keep_history))


# -- preview ------------------------------------------------------------------------------------------------


async def test_a_preview_returns_what_a_collection_would_remove(bench: Bench) -> None:
    other = (await bench.tenants.create("other", limits=Limits(retention_seconds=0))).id
    await keep(bench, HOUR, "a")
    await keep(bench, 2 * HOUR, "b")
    oldest = bench.clock.now()
    for status in FINISHED:
        await bench.make_job_in(status, "a")
        await bench.make_job_in(status, "b")
    retried = await bench.make_job_in(JobStatus.DEAD, "a")
    bench.clock.advance(seconds=60)
    await finish(bench, 2, "a")
    await finish(bench, 2, "ever")
    await finish(bench, 5, "a", tenant=other)
    bench.clock.advance(seconds=HOUR - 50)
    late = await finish(bench, 1, "a")
    await bench.jobs.retry(bench.tenant, retried.id)
    before = await snapshot(bench)
    assert await bench.jobs.preview_retention(bench.tenant) == [
        RetentionPreview(type="a", jobs=3, oldest_finished_at=oldest)
    ]
    assert await snapshot(bench) == before
    bench.clock.advance(seconds=HOUR - 10)
    first, second = await bench.jobs.preview_retention(bench.tenant)
    assert (first, second.jobs, second.type) == (RetentionPreview(type="a", jobs=5, oldest_finished_at=oldest), 3, "b")
    await collect_all(bench)
    assert await bench.jobs.preview_retention(bench.tenant) == []
    counts = (await bench.jobs.summary(bench.tenant)).counts
    assert sum(counts.values()) == len(late) + 2 + 1  # The late job, two jobs without retention, and the retried job.


async def test_a_preview_without_retention_is_empty(bench: Bench) -> None:
    await finish(bench, 1)
    assert await bench.jobs.preview_retention(bench.tenant) == []


async def test_a_preview_counts_at_most_10000_jobs_and_reports_more(bench: Bench) -> None:
    await keep(bench, 0)
    jobs = 10_001
    orders = [new_job(bench.tenant, "noop") for _ in range(jobs)]
    await bench.jobs.enqueue_many(orders[:1])
    await bench.jobs.enqueue_many(orders[1:])
    claims = []
    while batch := await bench.jobs.claim("worker", ["noop"], limit=1000):
        claims += batch
    for start in range(0, jobs, 1000):
        await bench.jobs.settle_many([_done(claim) for claim in claims[start : start + 1000]])
    (preview,) = await bench.jobs.preview_retention(bench.tenant)
    assert (preview.jobs, preview.more) == (10_000, True)
    assert (await bench.jobs.collect(1)).removed == 1
    (preview,) = await bench.jobs.preview_retention(bench.tenant)
    assert (preview.jobs, preview.more) == (10_000, False)


@pytest.mark.parametrize("tenant", [7, None])
async def test_a_tenant_that_is_not_a_string_is_refused(bench: Bench, tenant: Any) -> None:
    for call in (bench.jobs.preview_retention, bench.jobs.history):
        async with refuses(bench, InvalidInput):
            await call(tenant)


async def test_an_unknown_tenant_has_no_preview_and_no_history(bench: Bench) -> None:
    for call in (bench.jobs.preview_retention, bench.jobs.history):
        async with refuses(bench, TenantNotFound):
            await call(new_id())
