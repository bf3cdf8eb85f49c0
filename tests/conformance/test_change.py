"""Changing jobs: waiting jobs can be rescheduled, tags can be changed at any time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ingot.jobs import JobNotFound, JobNotQueued, JobStatus
from ingot.kernel.ids import new_id
from tests.conformance.snapshots import refuses, snapshot
from tests.factories import Bench

NOT_WAITING = [JobStatus.RUNNING, JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED]


async def test_a_reschedule_changes_only_the_named_fields(bench: Bench) -> None:
    job = await bench.make_job(priority=4, max_attempts=2, tags=["a"], delay=60)
    answer = await bench.jobs.reschedule(bench.tenant, job.id, priority=1)
    expected = (1, 2, job.run_at, ("a",))
    for seen in (answer, await bench.reload(job)):
        assert (seen.priority, seen.max_attempts, seen.run_at, seen.tags) == expected


async def test_a_changed_priority_changes_the_claim_order(bench: Bench) -> None:
    await bench.make_job()
    job = await bench.make_job()
    await bench.jobs.reschedule(bench.tenant, job.id, priority=1)
    (claim,) = await bench.jobs.claim("worker", ["noop"])
    assert (claim.job.id, claim.job.priority) == (job.id, 1)


async def test_a_postponed_job_waits_until_its_new_time(bench: Bench) -> None:
    job = await bench.make_job()
    later = bench.clock.now() + timedelta(minutes=10)
    assert (await bench.jobs.reschedule(bench.tenant, job.id, run_at=later)).run_at == later
    bench.clock.advance(seconds=599)
    assert await bench.jobs.claim("worker", ["noop"]) == []
    bench.clock.advance(seconds=1)
    assert len(await bench.jobs.claim("worker", ["noop"])) == 1


async def test_a_job_rescheduled_to_the_past_is_due_now(bench: Bench) -> None:
    job = await bench.make_job(delay=3600)
    answer = await bench.jobs.reschedule(bench.tenant, job.id, run_at=datetime(2020, 1, 1, tzinfo=UTC))
    assert answer.run_at == bench.clock.now()
    assert len(await bench.jobs.claim("worker", ["noop"])) == 1


async def test_a_job_rescheduled_to_an_earlier_future_time_waits_until_then(bench: Bench) -> None:
    job = await bench.make_job(delay=3600)
    await bench.jobs.reschedule(bench.tenant, job.id, run_at=bench.clock.now() + timedelta(seconds=60))
    bench.clock.advance(seconds=59)
    assert await bench.jobs.claim("worker", ["noop"]) == []
    bench.clock.advance(seconds=1)
    assert len(await bench.jobs.claim("worker", ["noop"])) == 1


async def test_a_raised_max_attempts_permits_another_failure(bench: Bench) -> None:
    claim = await bench.make_claim(max_attempts=2)
    await bench.jobs.fail(claim, "no")
    await bench.jobs.reschedule(bench.tenant, claim.job.id, max_attempts=3, run_at=bench.clock.now())
    (again,) = await bench.jobs.claim("worker", ["noop"])
    assert (await bench.jobs.fail(again, "no")).status is JobStatus.QUEUED


@pytest.mark.parametrize("status", list(JobStatus)[1:])
async def test_tags_can_be_changed_in_any_status(bench: Bench, status: JobStatus) -> None:
    job = await bench.make_job_in(status, tags=["a", "b"])
    answer = await bench.jobs.reschedule(bench.tenant, job.id, tags=["c", "b", "c"])
    assert (answer.status, answer.tags) == (status, ("b", "c"))
    assert (await bench.reload(job)).tags == ("b", "c")


async def test_all_tags_can_be_removed(bench: Bench) -> None:
    job = await bench.make_job(tags=["a", "b"])
    assert (await bench.jobs.reschedule(bench.tenant, job.id, tags=[])).tags == ()


@pytest.mark.parametrize("change", [{"priority": 1}, {"max_attempts": 9}, {"run_at": datetime(2030, 1, 1, tzinfo=UTC)}])
@pytest.mark.parametrize("status", NOT_WAITING)
async def test_a_reschedule_of_a_job_that_is_not_waiting_is_refused_with_its_tags(
    bench: Bench, status: JobStatus, change: dict[str, Any]
) -> None:
    job = await bench.make_job_in(status, tags=["a"])
    async with refuses(bench, JobNotQueued):
        await bench.jobs.reschedule(bench.tenant, job.id, tags=["b"], **change)


@pytest.mark.parametrize("change", [{"priority": 1}, {"tags": ["x"]}, {"max_attempts": 9}])
async def test_a_change_publishes_one_event(bench: Bench, change: dict[str, Any]) -> None:
    job = await bench.make_job()
    await bench.jobs.reschedule(bench.tenant, job.id, **change)
    assert await bench.event_names() == ["job.created", "job.updated"]


async def test_an_empty_change_changes_nothing(bench: Bench) -> None:
    job = await bench.make_job(tags=["a"])
    before = await snapshot(bench)
    answer = await bench.jobs.reschedule(bench.tenant, job.id)
    assert answer.id == job.id
    assert await snapshot(bench) == before


async def test_a_change_does_not_alter_the_counts(bench: Bench) -> None:
    job = await bench.make_job()
    await bench.jobs.reschedule(bench.tenant, job.id, run_at=bench.clock.now() + timedelta(hours=1), priority=5)
    counts = (await bench.jobs.summary(bench.tenant)).counts
    assert {status: count for status, count in counts.items() if count} == {JobStatus.QUEUED: 1}


async def test_an_unknown_job_cannot_be_changed(bench: Bench) -> None:
    async with refuses(bench, JobNotFound):
        await bench.jobs.reschedule(bench.tenant, new_id(), priority=1)


@pytest.mark.parametrize("change", [{"priority": 1}, {"tags": ["x"]}, {}])
async def test_a_job_of_another_tenant_cannot_be_changed(bench: Bench, change: dict[str, Any]) -> None:
    other = await bench.tenants.create("other")
    job = await bench.make_job()
    async with refuses(bench, JobNotFound):
        await bench.jobs.reschedule(other.id, job.id, **change)
