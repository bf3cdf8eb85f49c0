"""Change: a waiting job can be moved, tags can be changed at any time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ingot.jobs import JobNotFound, JobNotQueued, JobStatus
from ingot.kernel.ids import new_id
from tests.conformance.snapshots import refuses, snapshot
from tests.factories import Bench

NOT_WAITING = [JobStatus.RUNNING, JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED]


async def test_a_waiting_job_takes_what_is_named_and_keeps_the_rest(bench: Bench) -> None:
    job = await bench.make_job(priority=4, max_attempts=2, tags=["a"], delay=60)
    answer = await bench.jobs.reschedule(bench.tenant, job.id, priority=1)
    expected = (1, 2, job.run_at, ("a",))
    for seen in (answer, await bench.reload(job)):
        assert (seen.priority, seen.max_attempts, seen.run_at, seen.tags) == expected


async def test_a_changed_priority_changes_the_order(bench: Bench) -> None:
    await bench.make_job()
    job = await bench.make_job()
    await bench.jobs.reschedule(bench.tenant, job.id, priority=1)
    (claim,) = await bench.jobs.claim("worker", ["noop"])
    assert (claim.job.id, claim.job.priority) == (job.id, 1)


async def test_a_job_moved_later_waits_until_then(bench: Bench) -> None:
    job = await bench.make_job()
    later = bench.clock.now() + timedelta(minutes=10)
    assert (await bench.jobs.reschedule(bench.tenant, job.id, run_at=later)).run_at == later
    bench.clock.advance(seconds=599)
    assert await bench.jobs.claim("worker", ["noop"]) == []
    bench.clock.advance(seconds=1)
    assert len(await bench.jobs.claim("worker", ["noop"])) == 1


async def test_a_job_moved_to_the_past_is_due_now(bench: Bench) -> None:
    job = await bench.make_job(delay=3600)
    answer = await bench.jobs.reschedule(bench.tenant, job.id, run_at=datetime(2020, 1, 1, tzinfo=UTC))
    assert answer.run_at == bench.clock.now()
    assert len(await bench.jobs.claim("worker", ["noop"])) == 1


async def test_a_job_moved_to_another_time_in_the_future_waits_until_then(bench: Bench) -> None:
    job = await bench.make_job(delay=3600)
    await bench.jobs.reschedule(bench.tenant, job.id, run_at=bench.clock.now() + timedelta(seconds=60))
    bench.clock.advance(seconds=59)
    assert await bench.jobs.claim("worker", ["noop"]) == []
    bench.clock.advance(seconds=1)
    assert len(await bench.jobs.claim("worker", ["noop"])) == 1


async def test_more_attempts_let_a_job_fail_more_often(bench: Bench) -> None:
    claim = await bench.make_claim(max_attempts=2)
    await bench.jobs.fail(claim, "no")
    await bench.jobs.reschedule(bench.tenant, claim.job.id, max_attempts=3, run_at=bench.clock.now())
    (again,) = await bench.jobs.claim("worker", ["noop"])
    assert (await bench.jobs.fail(again, "no")).status is JobStatus.QUEUED


@pytest.mark.parametrize("status", list(JobStatus)[1:])
async def test_tags_can_be_changed_in_any_state(bench: Bench, status: JobStatus) -> None:
    job = await bench.make_job_in(status, tags=["a", "b"])
    answer = await bench.jobs.reschedule(bench.tenant, job.id, tags=["c", "b", "c"])
    assert (answer.status, answer.tags) == (status, ("b", "c"))
    assert (await bench.reload(job)).tags == ("b", "c")


async def test_all_tags_can_be_taken_away(bench: Bench) -> None:
    job = await bench.make_job(tags=["a", "b"])
    assert (await bench.jobs.reschedule(bench.tenant, job.id, tags=[])).tags == ()


@pytest.mark.parametrize("change", [{"priority": 1}, {"max_attempts": 9}, {"run_at": datetime(2030, 1, 1, tzinfo=UTC)}])
@pytest.mark.parametrize("status", NOT_WAITING)
async def test_a_job_that_does_not_wait_keeps_its_place_and_its_tags(
    bench: Bench, status: JobStatus, change: dict[str, Any]
) -> None:
    job = await bench.make_job_in(status, tags=["a"])
    async with refuses(bench, JobNotQueued):
        await bench.jobs.reschedule(bench.tenant, job.id, tags=["b"], **change)


@pytest.mark.parametrize("change", [{"priority": 1}, {"tags": ["x"]}, {"max_attempts": 9}])
async def test_a_change_is_told_once(bench: Bench, change: dict[str, Any]) -> None:
    job = await bench.make_job()
    await bench.jobs.reschedule(bench.tenant, job.id, **change)
    assert await bench.event_names() == ["job.created", "job.updated"]


async def test_a_change_of_nothing_changes_nothing(bench: Bench) -> None:
    job = await bench.make_job(tags=["a"])
    before = await snapshot(bench)
    answer = await bench.jobs.reschedule(bench.tenant, job.id)
    assert answer.id == job.id
    assert await snapshot(bench) == before


async def test_a_change_moves_no_count(bench: Bench) -> None:
    job = await bench.make_job()
    await bench.jobs.reschedule(bench.tenant, job.id, run_at=bench.clock.now() + timedelta(hours=1), priority=5)
    counts = (await bench.jobs.summary(bench.tenant)).counts
    assert {status: count for status, count in counts.items() if count} == {JobStatus.QUEUED: 1}


async def test_an_unknown_job_cannot_be_changed(bench: Bench) -> None:
    async with refuses(bench, JobNotFound):
        await bench.jobs.reschedule(bench.tenant, new_id(), priority=1)


@pytest.mark.parametrize("change", [{"priority": 1}, {"tags": ["x"]}, {}])
async def test_another_tenants_job_cannot_be_changed(bench: Bench, change: dict[str, Any]) -> None:
    other = await bench.tenants.create("other")
    job = await bench.make_job()
    async with refuses(bench, JobNotFound):
        await bench.jobs.reschedule(other.id, job.id, **change)
