"""Cancel, change and retry of jobs that wait for other jobs."""

from __future__ import annotations

from ingot.jobs import DuplicateJob, JobNotFinished
from ingot.jobs.job_options import new_job
from tests.conformance.dependency_fixture import BLOCKED, CANCELED, DEAD, QUEUED, RUNNING, SUCCEEDED, events_of
from tests.conformance.job_endings import counted, end, settle_down, statuses
from tests.conformance.snapshots import refuses
from tests.factories import Bench


async def test_a_canceled_blocked_job_stays_canceled_when_its_parent_succeeds(bench: Bench) -> None:
    parent = await bench.make_job("first")
    child = await bench.make_job("second", after=[parent.id])
    grandchild = await bench.make_job("third", after=[child.id])
    answer = await bench.jobs.cancel(bench.tenant, child.id)
    assert (answer.status, answer.finished_at, answer.after) == (CANCELED, bench.clock.now(), (parent.id,))
    await settle_down(bench)
    assert await statuses(bench, child, grandchild) == [CANCELED, CANCELED]
    await end(bench, parent)
    assert await statuses(bench, child, grandchild) == [CANCELED, CANCELED]
    assert await counted(bench) == {SUCCEEDED: 1, CANCELED: 2}


async def test_a_blocked_job_can_be_changed_and_stays_blocked(bench: Bench) -> None:
    parent = await bench.make_job("first")
    child = await bench.make_job("second", after=[parent.id])
    later = bench.clock.now().replace(microsecond=0)
    later = later.replace(year=later.year + 1)
    changed = await bench.jobs.reschedule(
        bench.tenant, child.id, priority=1, max_attempts=9, run_at=later, tags=["red"]
    )
    assert (changed.status, changed.priority, changed.max_attempts, changed.run_at, changed.tags) == (
        BLOCKED,
        1,
        9,
        later,
        ("red",),
    )
    assert await bench.reload(child) == changed
    await settle_down(bench)
    assert (await events_of(bench, child))[-1] == ("job.updated", "blocked")
    await end(bench, parent)
    assert await bench.jobs.claim("worker", ["second"]) == []
    assert (await bench.reload(child)).run_at == later
    bench.clock.advance(days=366)
    (claim,) = await bench.jobs.claim("worker", ["second"])
    assert (claim.job.priority, claim.job.max_attempts) == (1, 9)


async def test_a_blocked_job_can_be_rescheduled_to_an_earlier_time(bench: Bench) -> None:
    parent = await bench.make_job("first")
    child = await bench.make_job("second", after=[parent.id], delay=3600)
    await bench.jobs.reschedule(bench.tenant, child.id, run_at=bench.clock.now())
    assert await statuses(bench, child) == [BLOCKED]
    await end(bench, parent)
    assert [claim.job.id for claim in await bench.jobs.claim("worker", ["second"])] == [child.id]


async def test_a_job_waits_for_its_parent_and_then_for_its_time(bench: Bench) -> None:
    parent = await bench.make_job("first")
    child = await bench.make_job("second", after=[parent.id], delay=60)
    await end(bench, parent)
    assert await statuses(bench, child) == [QUEUED]
    assert await bench.jobs.claim("worker", ["second"]) == []
    bench.clock.advance(seconds=60)
    assert [claim.job.id for claim in await bench.jobs.claim("worker", ["second"])] == [child.id]


async def test_a_blocked_job_stays_blocked_when_its_time_has_come(bench: Bench) -> None:
    parent = await bench.make_job("first")
    child = await bench.make_job("second", after=[parent.id], delay=60)
    bench.clock.advance(seconds=61)
    await settle_down(bench)
    assert await bench.jobs.claim("worker", ["second"]) == []
    assert await statuses(bench, child) == [BLOCKED]


async def test_a_blocked_job_cannot_be_retried(bench: Bench) -> None:
    parent = await bench.make_job("first")
    child = await bench.make_job("second", after=[parent.id])
    async with refuses(bench, JobNotFinished):
        await bench.jobs.retry(bench.tenant, child.id)


async def test_a_retried_job_does_not_wait_again(bench: Bench) -> None:
    parent = await bench.make_job("first")
    child = await bench.make_job("second", after=[parent.id])
    await bench.jobs.cancel(bench.tenant, child.id)
    assert (await bench.jobs.retry(bench.tenant, child.id)).status is QUEUED
    (claim,) = await bench.jobs.claim("worker", ["second"])
    assert claim.job.after == (parent.id,)
    await end(bench, parent, CANCELED)
    assert await statuses(bench, child) == [RUNNING]
    await bench.jobs.complete(claim)
    assert await statuses(bench, child) == [SUCCEEDED]


async def test_new_jobs_wait_for_a_retried_parent(bench: Bench) -> None:
    parent = await bench.make_job_in(DEAD, "first")
    canceled = await bench.make_job("second", after=[parent.id])
    await settle_down(bench)
    await bench.jobs.retry(bench.tenant, parent.id)
    child = await bench.make_job("second", after=[parent.id])
    await settle_down(bench)
    assert await statuses(bench, canceled, child) == [CANCELED, BLOCKED]
    await end(bench, parent)
    assert await statuses(bench, canceled, child) == [CANCELED, QUEUED]


async def test_an_immediate_retry_of_a_dead_parent_leaves_no_job_blocked(bench: Bench) -> None:
    parent = await bench.make_job("first")
    await bench.jobs.enqueue_many([new_job(bench.tenant, "second", after=[parent.id]) for _ in range(2500)])
    (claim,) = await bench.jobs.claim("worker", ["first"])
    await bench.jobs.fail(claim, "broken", retry=False)
    await bench.jobs.retry(bench.tenant, parent.id)
    await settle_down(bench)
    await end(bench, parent)
    counts = await counted(bench)
    assert BLOCKED not in counts
    assert counts[CANCELED] + counts.get(QUEUED, 0) == 2500


async def test_a_blocked_job_holds_its_dedupe_key_until_it_ends(bench: Bench) -> None:
    parent = await bench.make_job("first")
    child = await bench.make_job("second", after=[parent.id], dedupe_key="key")
    async with refuses(bench, DuplicateJob) as caught:
        await bench.make_job("second", dedupe_key="key")
    assert caught.value.holder_id == child.id  # type: ignore[attr-defined]
    await end(bench, parent, CANCELED)
    assert await statuses(bench, child) == [CANCELED]
    await bench.make_job("second", dedupe_key="key")
