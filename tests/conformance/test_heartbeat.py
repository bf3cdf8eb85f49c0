"""Heartbeats renew a lease only for the holder of the current fence."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ingot.jobs import Heartbeat, JobNotFound, JobStatus, LeaseLost, Progress
from ingot.jobs.ports import AttemptHeartbeat, RenewLeases
from ingot.kernel.clock import MICROS
from ingot.kernel.ids import new_id
from tests.conformance.snapshots import refuses, snapshot
from tests.factories import LEASE_SECONDS, Bench

LEASE = timedelta(seconds=LEASE_SECONDS)


async def test_a_heartbeat_renews_the_lease_from_now(bench: Bench) -> None:
    claim = await bench.make_claim()
    bench.clock.advance(seconds=100)
    answer = await bench.jobs.heartbeat(claim.job.id, claim.fence)
    assert answer == Heartbeat(job_id=claim.job.id, lease_expires_at=bench.clock.now() + LEASE, cancel_requested=False)
    assert (await bench.reload(claim)).lease_expires_at == answer.lease_expires_at


async def test_a_renewed_lease_is_not_swept_at_its_old_end(bench: Bench) -> None:
    claim = await bench.make_claim()
    bench.clock.advance(seconds=100)
    await bench.jobs.heartbeat(claim.job.id, claim.fence)
    bench.clock.advance(seconds=LEASE_SECONDS - 1)
    assert (await bench.jobs.maintain()).swept == 0
    bench.clock.advance(seconds=1)
    assert (await bench.jobs.maintain()).swept == 1


async def test_a_lease_renewed_for_a_shorter_time_expires_sooner(bench: Bench) -> None:
    claim = await bench.make_claim()
    beat = AttemptHeartbeat(job_id=claim.job.id, fence=claim.fence, lease=10 * MICROS)
    await bench.store.run(RenewLeases(beats=[beat]))
    bench.clock.advance(seconds=10)
    assert (await bench.jobs.maintain()).swept == 1


async def test_an_expired_lease_that_was_not_swept_is_renewed(bench: Bench) -> None:
    claim = await bench.make_claim()
    bench.clock.advance(seconds=10 * LEASE_SECONDS)
    await bench.jobs.heartbeat(claim.job.id, claim.fence)
    assert (await bench.jobs.maintain()).swept == 0
    assert (await bench.reload(claim)).status is JobStatus.RUNNING


async def test_a_heartbeat_without_progress_publishes_no_event(bench: Bench) -> None:
    claim = await bench.make_claim()
    before = await bench.event_names()
    await bench.jobs.heartbeat(claim.job.id, claim.fence)
    assert await bench.event_names() == before


async def test_a_heartbeat_returns_cancel_requested(bench: Bench) -> None:
    claim = await bench.make_claim()
    await bench.jobs.cancel(bench.tenant, claim.job.id)
    assert (await bench.jobs.heartbeat(claim.job.id, claim.fence)).cancel_requested


async def test_progress_is_stored_and_published(bench: Bench) -> None:
    claim = await bench.make_claim()
    await bench.jobs.heartbeat(claim.job.id, claim.fence, progress=Progress(percent=12.5, stage="reading"))
    assert (await bench.reload(claim)).progress == Progress(percent=12.5, stage="reading")
    last = (await snapshot(bench))[0]["events"][-1]
    assert (last["name"], last["data"]["progress"]) == ("job.updated", {"percent": 12.5, "stage": "reading"})


async def test_a_heartbeat_without_progress_keeps_the_last_progress(bench: Bench) -> None:
    claim = await bench.make_claim()
    await bench.jobs.heartbeat(claim.job.id, claim.fence, progress=Progress(percent=50))
    await bench.jobs.heartbeat(claim.job.id, claim.fence)
    assert (await bench.reload(claim)).progress == Progress(percent=50)


async def test_progress_is_published_at_most_once_a_second_per_job(bench: Bench) -> None:
    claims = [await bench.make_claim("a"), await bench.make_claim("b")]
    before = len(await bench.event_names())
    for tenth in range(25):
        for claim in claims:
            await bench.jobs.heartbeat(claim.job.id, claim.fence, progress=Progress(percent=tenth))
        bench.clock.advance(seconds=0.1)
    assert len(await bench.event_names()) - before == 2 * 3
    assert [(await bench.reload(claim)).progress for claim in claims] == [Progress(percent=24)] * 2


async def test_a_new_attempt_starts_without_progress(bench: Bench) -> None:
    claim = await bench.make_claim()
    await bench.jobs.heartbeat(claim.job.id, claim.fence, progress=Progress(percent=90, stage="nearly"))
    await bench.jobs.release(claim)
    assert (await bench.reload(claim)).progress is None
    (again,) = await bench.jobs.claim("worker", ["noop"])
    assert again.job.progress is None
    (first, second) = await bench.jobs.attempts(bench.tenant, claim.job.id)
    assert (first.progress, second.progress) == (Progress(percent=90, stage="nearly"), None)


@pytest.mark.parametrize("fence_off_by", [-1, 1, 2**60, 2**80])
async def test_a_wrong_fence_renews_nothing(bench: Bench, fence_off_by: int) -> None:
    claim = await bench.make_claim()
    async with refuses(bench, LeaseLost):
        await bench.jobs.heartbeat(claim.job.id, claim.fence + fence_off_by, progress=Progress(percent=1))


async def test_the_fence_of_an_earlier_claim_renews_nothing(bench: Bench) -> None:
    stale = await bench.make_claim()
    await bench.jobs.release(stale)
    await bench.jobs.claim("other", ["noop"])
    async with refuses(bench, LeaseLost):
        await bench.jobs.heartbeat(stale.job.id, stale.fence)


async def test_a_swept_lease_cannot_be_renewed(bench: Bench) -> None:
    claim = await bench.make_claim()
    bench.clock.advance(seconds=LEASE_SECONDS)
    await bench.jobs.maintain()
    async with refuses(bench, LeaseLost):
        await bench.jobs.heartbeat(claim.job.id, claim.fence)


@pytest.mark.parametrize("status", [JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED, JobStatus.QUEUED])
async def test_a_job_that_is_not_running_has_no_lease_to_renew(bench: Bench, status: JobStatus) -> None:
    job = await bench.make_job_in(status)
    async with refuses(bench, LeaseLost):
        await bench.jobs.heartbeat(job.id, job.fence)


async def test_an_unknown_job_cannot_be_renewed(bench: Bench) -> None:
    claim = await bench.make_claim()
    async with refuses(bench, JobNotFound):
        await bench.jobs.heartbeat(new_id(), claim.fence)


async def test_another_tenant_cannot_renew_a_lease(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    claim = await bench.make_claim()
    async with refuses(bench, JobNotFound):
        await bench.jobs.heartbeat(claim.job.id, claim.fence, tenant=other.id)


async def test_a_tenant_can_renew_a_lease_of_its_own_job(bench: Bench) -> None:
    claim = await bench.make_claim()
    assert (await bench.jobs.heartbeat(claim.job.id, claim.fence, tenant=bench.tenant)).job_id == claim.job.id


async def test_many_heartbeats_return_one_result_each_in_order(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    first, second = await bench.make_claim("a"), await bench.make_claim("b")
    bench.clock.advance(seconds=30)
    beat = bench.jobs.beat
    answers = await bench.jobs.heartbeat_many(
        [
            beat(second.job.id, second.fence, progress=Progress(percent=10)),
            beat(new_id(), 1),
            beat(first.job.id, first.fence + 1),
            beat("not an id \ud800", 1),
            beat(first.job.id, first.fence, tenant=other.id),
            beat(first.job.id, first.fence),
        ]
    )
    kinds = [Heartbeat, JobNotFound, LeaseLost, JobNotFound, JobNotFound, Heartbeat]
    assert [type(answer) for answer in answers] == kinds
    renewed = [answer.job_id for answer in answers if isinstance(answer, Heartbeat)]
    assert renewed == [second.job.id, first.job.id]
    ends = [(await bench.reload(claim)).lease_expires_at for claim in (first, second)]
    assert ends == [bench.clock.now() + LEASE] * 2


async def test_an_empty_call_of_heartbeats_returns_an_empty_list(bench: Bench) -> None:
    assert await bench.jobs.heartbeat_many([]) == []


async def test_one_job_renewed_twice_in_one_call_keeps_the_last_progress(bench: Bench) -> None:
    claim = await bench.make_claim()
    beats = [bench.jobs.beat(claim.job.id, claim.fence, progress=Progress(percent=n)) for n in (10, 20)]
    answers = await bench.jobs.heartbeat_many(beats)
    assert [type(answer) for answer in answers] == [Heartbeat, Heartbeat]
    assert (await bench.reload(claim)).progress == Progress(percent=20)


async def test_progress_is_published_at_most_once_a_second_across_attempts(bench: Bench) -> None:
    claim = await bench.make_claim()
    await bench.jobs.heartbeat(claim.job.id, claim.fence, progress=Progress(percent=10))
    await bench.jobs.release(claim)
    (again,) = await bench.jobs.claim("worker", ["noop"])
    await bench.jobs.heartbeat(again.job.id, again.fence, progress=Progress(percent=20))
    names = await bench.event_names()
    assert names == ["job.created", "job.started", "job.updated", "job.updated", "job.started"]
