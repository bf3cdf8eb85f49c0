"""Retention: finished jobs are removed when they have been kept long enough, and no other job ever is."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingot.identity import Limits
from ingot.jobs import Definition, DuplicateJob, JobCollectionResult, JobNotFound, JobStatus, NewJob
from ingot.jobs.job_options import new_job
from ingot.kernel.clock import ManualClock
from tests.conformance.job_endings import end
from tests.conformance.retention import FINISHED, HOUR, collect_all, finish, keep, there
from tests.conformance.snapshots import snapshot
from tests.factories import LEASE_SECONDS, Bench, open_bench

# -- duration -----------------------------------------------------------------------------------------------


async def test_finished_jobs_are_kept_forever_by_default(bench: Bench) -> None:
    ids = [(await bench.make_job_in(status)).id for status in FINISHED]
    bench.clock.advance(days=30_000)
    assert await bench.jobs.collect() == JobCollectionResult()
    assert await there(bench) == ids


@pytest.mark.parametrize("status", FINISHED)
async def test_a_finished_job_is_removed_exactly_after_its_retention(bench: Bench, status: JobStatus) -> None:
    await keep(bench, HOUR)
    job = await bench.make_job_in(status)
    bench.clock.advance(seconds=HOUR - 0.000001)
    assert await bench.jobs.collect() == JobCollectionResult()
    assert await there(bench) == [job.id]
    bench.clock.advance(seconds=0.000001)
    assert await bench.jobs.collect() == JobCollectionResult(removed=1)
    assert await there(bench) == []
    for call in (bench.jobs.get, bench.jobs.attempts, bench.jobs.cancel, bench.jobs.retry):
        with pytest.raises(JobNotFound):
            await call(bench.tenant, job.id)


async def test_the_retention_starts_when_a_job_finishes(bench: Bench) -> None:
    await keep(bench, HOUR)
    claim = await bench.make_claim()
    bench.clock.advance(seconds=2 * HOUR)
    await bench.jobs.complete(claim)
    assert await bench.jobs.collect() == JobCollectionResult()
    bench.clock.advance(seconds=HOUR)
    assert (await bench.jobs.collect()).removed == 1


async def test_jobs_with_a_retention_of_zero_are_removed_at_once(bench: Bench) -> None:
    await keep(bench, 0)
    await finish(bench, 2)
    assert (await bench.jobs.collect()).removed == 2


async def test_each_type_has_the_retention_of_its_definition(bench: Bench) -> None:
    await keep(bench, HOUR, "short")
    await keep(bench, 3 * HOUR, "long")
    short, long, ever = [(await finish(bench, 2, type)) for type in ("short", "long", "ever")]
    bench.clock.advance(seconds=2 * HOUR)
    assert await collect_all(bench) == 2
    assert await there(bench) == [*long, *ever]
    bench.clock.advance(seconds=HOUR)
    assert await collect_all(bench) == 2
    assert await there(bench) == ever
    assert short


async def test_a_tenant_can_have_a_retention_in_its_limits(bench: Bench) -> None:
    other = (await bench.tenants.create("other", limits=Limits(retention_seconds=HOUR))).id
    mine = await finish(bench, 1)
    await finish(bench, 1, tenant=other)
    await finish(bench, 1, "b", tenant=other)
    bench.clock.advance(seconds=HOUR)
    assert await collect_all(bench) == 2
    assert (await there(bench), await there(bench, other)) == (mine, [])


@pytest.mark.parametrize(("tenant", "definition"), [(HOUR, 10 * HOUR), (10 * HOUR, HOUR)])
async def test_the_retention_of_a_definition_takes_precedence_over_the_tenant(
    bench: Bench, tenant: float, definition: float
) -> None:
    await bench.tenants.change(bench.tenant, limits=Limits(retention_seconds=tenant))
    await keep(bench, definition, "said")
    with_own, without_own = await finish(bench, 1, "said"), await finish(bench, 1, "unsaid")
    bench.clock.advance(seconds=5 * HOUR)
    assert await collect_all(bench) == 1
    assert await there(bench) == (with_own if definition > tenant else without_own)


async def test_a_tenants_own_definition_takes_precedence_over_the_common_one(bench: Bench) -> None:
    other = (await bench.tenants.create("other")).id
    await keep(bench, HOUR)
    await bench.jobs.define(
        Definition(type="noop", tenant=bench.tenant)
    )  # Neither this definition nor the tenant has a retention.
    mine = await finish(bench, 1)
    await finish(bench, 1, tenant=other)
    bench.clock.advance(seconds=2 * HOUR)
    assert await collect_all(bench) == 1
    assert (await there(bench), await there(bench, other)) == (mine, [])


async def test_a_changed_retention_applies_to_jobs_finished_before(bench: Bench) -> None:
    ids = await finish(bench, 3)
    bench.clock.advance(seconds=HOUR)
    await keep(bench, 2 * HOUR)
    assert await collect_all(bench) == 0
    await keep(bench, None)
    bench.clock.advance(seconds=5 * HOUR)
    assert await collect_all(bench) == 0
    assert await there(bench) == ids
    await keep(bench, HOUR)
    assert await collect_all(bench) == 3


async def test_a_retention_beyond_the_range_of_time_keeps_jobs_forever(bench: Bench) -> None:
    await bench.tenants.change(bench.tenant, limits=Limits(retention_seconds=2.0**53))
    await finish(bench, 1)
    bench.clock.advance(days=30_000)
    assert await collect_all(bench) == 0


# -- jobs that are not removed ------------------------------------------------------------------------------


async def test_unfinished_jobs_are_never_removed(bench: Bench) -> None:
    await keep(bench, 0)
    queued = await bench.make_job(priority=5)
    scheduled = await bench.make_job(delay=100 * HOUR)
    running = await bench.make_claim(priority=1)
    retrying = await bench.make_claim(priority=1)
    await bench.jobs.fail(retrying, "not yet")
    snoozed = await bench.make_claim(priority=1)
    await bench.jobs.snooze(snoozed, HOUR)
    released = await bench.make_claim(priority=1)
    await bench.jobs.release(released)
    asked = await bench.make_claim("asked")
    await bench.jobs.cancel(bench.tenant, asked.job.id)
    before = await snapshot(bench)
    bench.clock.advance(seconds=HOUR / 2)
    assert await bench.jobs.collect() == JobCollectionResult()
    assert await snapshot(bench) == before
    assert len(before[0]["jobs"]) == 7
    assert {queued.id, scheduled.id, running.job.id} <= {job["id"] for job in before[0]["jobs"]}


@pytest.mark.parametrize("status", FINISHED)
async def test_a_retried_job_is_kept_until_it_has_finished_again(bench: Bench, status: JobStatus) -> None:
    await keep(bench, HOUR)
    job = await bench.make_job_in(status, tags=["red"], idempotency_key="key", payload={"n": 1})
    bench.clock.advance(seconds=HOUR)
    retried = await bench.jobs.retry(bench.tenant, job.id)
    assert await collect_all(bench) == 0
    assert await bench.reload(job) == retried
    (claim,) = await bench.jobs.claim("worker", ["noop"])
    assert await collect_all(bench) == 0
    await bench.jobs.complete(claim)
    assert not (await bench.jobs.enqueue(bench.tenant, "noop", {"n": 1}, idempotency_key="key")).created
    bench.clock.advance(seconds=HOUR - 1)
    assert await collect_all(bench) == 0
    assert len(await bench.jobs.attempts(bench.tenant, job.id)) == (1 if status is JobStatus.CANCELED else 2)
    bench.clock.advance(seconds=1)
    assert await collect_all(bench) == 1


async def test_a_job_that_finished_twice_is_removed_once(bench: Bench) -> None:
    await keep(bench, HOUR)
    job = await bench.make_job_in(JobStatus.SUCCEEDED)
    await bench.jobs.retry(bench.tenant, job.id)
    (claim,) = await bench.jobs.claim("worker", ["noop"])
    await bench.jobs.complete(claim)
    bench.clock.advance(seconds=HOUR)
    assert [preview.jobs for preview in await bench.jobs.preview_retention(bench.tenant)] == [1]
    assert await collect_all(bench, limit=1) == 1
    assert (await bench.jobs.summary(bench.tenant)).counts[JobStatus.SUCCEEDED] == 0


async def test_the_retention_restarts_when_a_retried_job_finishes(bench: Bench) -> None:
    await keep(bench, HOUR)
    job = await bench.make_job_in(JobStatus.SUCCEEDED)
    bench.clock.advance(seconds=HOUR)
    await bench.jobs.retry(bench.tenant, job.id)
    await bench.jobs.cancel(bench.tenant, job.id)
    assert await bench.jobs.preview_retention(bench.tenant) == []
    assert await collect_all(bench) == 0
    bench.clock.advance(seconds=HOUR)
    assert await collect_all(bench) == 1


async def test_lost_jobs_and_jobs_canceled_while_running_are_removed(bench: Bench) -> None:
    await keep(bench, HOUR, crash_cap=1)
    await bench.make_claim()
    stopped = await bench.make_claim()
    await bench.jobs.cancel(bench.tenant, stopped.job.id)
    await bench.jobs.fail(stopped, "stopped")
    bench.clock.advance(seconds=LEASE_SECONDS)
    assert (await bench.jobs.maintain()).swept == 1
    bench.clock.advance(seconds=HOUR)
    assert await collect_all(bench) == 2
    assert await there(bench) == []


# -- consequences of a removal ------------------------------------------------------------------------------


async def test_counts_are_exact_after_a_collection(bench: Bench) -> None:
    await keep(bench, HOUR, "goes")
    for status in [JobStatus.QUEUED, JobStatus.RUNNING, *FINISHED, *FINISHED]:
        await bench.make_job_in(status, f"stays-{status.value}")
    for status in [*FINISHED, JobStatus.DEAD]:
        await bench.make_job_in(status, "goes")
    bench.clock.advance(seconds=HOUR)
    assert await collect_all(bench) == 4
    counts = {JobStatus.BLOCKED: 0, JobStatus.QUEUED: 1, JobStatus.RUNNING: 1} | dict.fromkeys(FINISHED, 2)
    assert (await bench.jobs.summary(bench.tenant)).counts == counts


async def test_keys_and_ids_of_removed_jobs_can_be_reused(bench: Bench) -> None:
    await keep(bench, HOUR)
    order = new_job(bench.tenant, "noop", 1, idempotency_key="once", dedupe_key="alone", tags=["red"])
    (first,) = await bench.jobs.enqueue_many([order])
    (claim,) = await bench.jobs.claim("worker", ["noop"])
    await bench.jobs.complete(claim)
    bench.clock.advance(seconds=HOUR)
    assert not (await bench.jobs.enqueue(bench.tenant, "noop", 1, idempotency_key="once")).created
    assert await collect_all(bench) == 1
    second = await bench.jobs.enqueue(bench.tenant, "noop", 2, idempotency_key="once", dedupe_key="alone")
    assert second.created
    assert second.job.id != first.job.id
    with pytest.raises(DuplicateJob):
        await bench.make_job(dedupe_key="alone")
    (resent,) = await bench.jobs.enqueue_many([NewJob(id=first.job.id, tenant=bench.tenant, type="noop")])
    again = await bench.reload(resent.job)
    assert (resent.created, again.id, again.attempts, again.tags) == (True, first.job.id, 0, ())
    assert await bench.jobs.attempts(bench.tenant, again.id) == []


async def test_a_key_of_a_kept_job_stays_in_use(bench: Bench) -> None:
    await keep(bench, HOUR, "goes")
    for type in ("goes", "stays"):
        await bench.make_job_in(JobStatus.SUCCEEDED, type, payload=1, idempotency_key="same")
    bench.clock.advance(seconds=HOUR)
    assert await collect_all(bench) == 1
    assert not (await bench.jobs.enqueue(bench.tenant, "stays", 1, idempotency_key="same")).created


async def test_a_job_keeps_the_ids_of_its_parents_after_their_removal(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        await keep(bench, HOUR, "parent")
        parent = new_job(bench.tenant, "parent")
        child = new_job(bench.tenant, "child", after=[parent.id])
        _, enqueued = await bench.jobs.enqueue_many([child, parent])
        await end(bench, enqueued.job)
        clock.advance(seconds=HOUR)
        assert await collect_all(bench) == 1
        assert (await bench.jobs.get(bench.tenant, child.id)).after == (parent.id,)
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        await bench.make_job("another")
        assert (await bench.jobs.get(bench.tenant, child.id)).after == (parent.id,)


async def test_a_collection_keeps_events_and_publishes_none(bench: Bench) -> None:
    await keep(bench, HOUR)
    await finish(bench, 2)
    names = await bench.event_names()
    bench.clock.advance(seconds=HOUR)
    assert await collect_all(bench) == 2
    assert await bench.event_names() == names
