"""Maintenance: due jobs become ready, and expired leases are swept."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import apsw
import pytest
from structlog.testing import capture_logs

from ingot.jobs import AttemptOutcome, Definition, Job, Jobs, JobStatus, MaintenanceResult
from ingot.jobs.maintenance import JobMaintenance
from ingot.jobs.model import CRASH_CAP_DEFAULT
from ingot.kernel.clock import ManualClock
from tests.conformance.snapshots import snapshot
from tests.factories import LEASE_SECONDS, Bench, open_bench, open_store
from tests.waiting import eventually


async def test_maintenance_without_due_work_changes_nothing(bench: Bench) -> None:
    await bench.make_job()
    before = await snapshot(bench)
    assert await bench.jobs.maintain() == MaintenanceResult(promoted=0, swept=0)
    assert await snapshot(bench) == before


async def test_due_jobs_are_promoted_once(bench: Bench) -> None:
    for delay in (10, 20, 30):
        await bench.make_job(delay=delay)
    bench.clock.advance(seconds=20)
    assert [await bench.jobs.maintain() for _ in range(2)] == [MaintenanceResult(promoted=2), MaintenanceResult()]
    assert (await bench.jobs.summary(bench.tenant)).oldest_queued_seconds == 10


async def test_a_promotion_keeps_run_at(bench: Bench) -> None:
    job = await bench.make_job(delay=10)
    bench.clock.advance(seconds=100)
    await bench.jobs.maintain()
    assert (await bench.reload(job)).run_at == job.run_at


async def test_a_lost_job_is_due_within_five_seconds_and_counts_a_crash(bench: Bench) -> None:
    claims = [await bench.make_claim() for _ in range(20)]
    bench.clock.advance(seconds=LEASE_SECONDS)
    assert await bench.jobs.maintain() == MaintenanceResult(promoted=0, swept=20)
    jobs = [await bench.reload(claim) for claim in claims]
    assert {(job.status, job.crashes, job.failures, job.attempts) for job in jobs} == {(JobStatus.QUEUED, 1, 0, 1)}
    waits = [(job.run_at - bench.clock.now()).total_seconds() for job in jobs]
    assert all(0 <= wait < 5 for wait in waits)
    assert len(set(waits)) > 1
    assert {(job.worker_id, job.lease_expires_at) for job in jobs} == {(None, None)}


async def test_lost_leases_are_logged_with_their_worker(bench: Bench) -> None:
    first, second = [await bench.make_claim(worker="press/1") for _ in range(2)]
    kept = await bench.make_claim(worker="press/2")
    bench.clock.advance(seconds=LEASE_SECONDS)
    await bench.jobs.heartbeat(kept.job.id, kept.fence)
    with capture_logs() as logs:
        assert (await bench.jobs.maintain()).swept == 2
        assert (await bench.jobs.maintain()).swept == 0
    (entry,) = [entry for entry in logs if entry["event"] == "leases_lost"]
    assert sorted(entry.pop("job_ids")) == sorted([first.job.id, second.job.id])
    expected = {"worker_id": "press/1", "tenant_id": bench.tenant, "jobs": 2, "log_level": "warning"}
    assert entry == {"event": "leases_lost", **expected}


async def test_a_job_that_dies_with_its_workers_is_logged(bench: Bench) -> None:
    job = await bench.make_job("fragile")
    with capture_logs() as logs:
        for crash in range(CRASH_CAP_DEFAULT):
            bench.clock.advance(seconds=60)
            await bench.jobs.maintain()
            assert await bench.jobs.claim(f"press/{crash}", ["fragile"])
            bench.clock.advance(seconds=LEASE_SECONDS)
            await bench.jobs.maintain()
    assert (await bench.reload(job)).status is JobStatus.DEAD
    (entry,) = [entry for entry in logs if entry["event"] == "job_dead"]
    assert (entry["log_level"], entry["job_id"], entry["job_type"], entry["worker_id"], entry["tenant_id"]) == (
        "error",
        job.id,
        "fragile",
        f"press/{CRASH_CAP_DEFAULT - 1}",
        bench.tenant,
    )


async def test_leases_are_not_swept_right_after_the_process_was_suspended(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingot.engines.sweep_guard.STALL_SECONDS_MIN", 0.05)
    monkeypatch.setattr("tests.factories.LEASE_SECONDS", 0.01)
    async with open_bench(engine, tmp_path / "data") as bench:
        await bench.make_claim()
        bench.store.tick()
        time.sleep(0.06)  # noqa: ASYNC251 - the whole process is suspended
        bench.clock.advance(seconds=1)
        assert (await bench.jobs.maintain()).swept == 0

        async def swept() -> int:
            bench.clock.advance(seconds=1)
            return (await bench.jobs.maintain()).swept

        assert await eventually(swept, why="the lease is swept later") == 1


async def test_leases_are_not_swept_right_after_a_commit_that_stalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingot.engines.sweep_guard.STALL_SECONDS_MIN", 0.05)
    monkeypatch.setattr("tests.factories.LEASE_SECONDS", 0.01)
    async with open_bench("sqlite", tmp_path / "data") as bench:
        await bench.make_claim()
        bench.clock.advance(seconds=1)
        other = apsw.Connection(str(tmp_path / "data" / "ingot.db"))
        other.execute("BEGIN IMMEDIATE")  # The writer waits for its end.
        creation = asyncio.ensure_future(bench.make_job())
        await asyncio.sleep(0.1)
        other.close()
        await creation
        assert (await bench.jobs.maintain()).swept == 0
        bench.clock.advance(seconds=1)
        assert (await bench.jobs.maintain()).swept == 1


class SlowStore:
    """A store whose maintenance ends after two ticks."""

    def __init__(self) -> None:
        self._ticks = 0
        self._ticked = asyncio.Event()

    def on_maintenance_rescheduled(self, _: object) -> None:
        pass

    def tick(self) -> None:
        self._ticks += 1
        if self._ticks == 2:
            self._ticked.set()

    async def run(self, _: object) -> MaintenanceResult:
        await self._ticked.wait()
        return MaintenanceResult(promoted=1, swept=2)


async def test_maintenance_that_takes_long_is_no_suspension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingot.jobs.maintenance.TICK_SECONDS", 0.001)
    store: Any = SlowStore()
    assert await JobMaintenance(store).run_once() == MaintenanceResult(promoted=1, swept=2)


async def test_a_lease_is_swept_from_the_instant_it_expires(bench: Bench) -> None:
    claim = await bench.make_claim()
    bench.clock.advance(seconds=LEASE_SECONDS - 0.000001)
    assert (await bench.jobs.maintain()).swept == 0
    bench.clock.advance(seconds=0.000001)
    assert (await bench.jobs.maintain()).swept == 1
    assert (await bench.reload(claim)).last_error is not None


async def test_a_sweep_ends_the_attempt_and_publishes_an_event(bench: Bench) -> None:
    claim = await bench.make_claim()
    bench.clock.advance(seconds=LEASE_SECONDS)
    await bench.jobs.maintain()
    (attempt,) = await bench.jobs.attempts(bench.tenant, claim.job.id)
    assert (attempt.outcome, attempt.status_after, attempt.finished_at) == (
        AttemptOutcome.LOST,
        JobStatus.QUEUED,
        bench.clock.now(),
    )
    last = (await snapshot(bench))[0]["events"][-1]
    assert (last["name"], last["data"]["will_retry"], last["data"]["crashes"]) == ("job.failed", True, 1)


async def test_a_sweep_updates_the_counts(bench: Bench) -> None:
    await bench.make_claim()
    bench.clock.advance(seconds=LEASE_SECONDS)
    await bench.jobs.maintain()
    counts = (await bench.jobs.summary(bench.tenant)).counts
    assert {status: count for status, count in counts.items() if count} == {JobStatus.QUEUED: 1}


@pytest.mark.parametrize("crash_cap", [1, 2, 3, 5])
async def test_a_job_is_dead_after_crash_cap_crashes(bench: Bench, crash_cap: int) -> None:
    if crash_cap != 3:  # 3 is the default.
        await bench.jobs.define(Definition(type="noop", crash_cap=crash_cap))
    job = await bench.make_job(max_attempts=1)
    runs = await _crash_until_finished(bench, job)
    dead = await bench.reload(job)
    assert (runs, dead.status, dead.crashes, dead.failures, dead.attempts) == (
        crash_cap,
        JobStatus.DEAD,
        crash_cap,
        0,
        crash_cap,
    )
    assert (await bench.event_names())[-2:] == ["job.failed", "job.dead"]


async def test_failures_and_crashes_are_counted_separately(bench: Bench) -> None:
    job = await bench.make_job(max_attempts=3)
    for n in range(4):
        (claim,) = await bench.jobs.claim("worker", ["noop"])
        if n % 2:
            await bench.jobs.fail(claim, "no")
        else:
            bench.clock.advance(seconds=LEASE_SECONDS)
            await bench.jobs.maintain()
        bench.clock.advance(seconds=60)
    seen = await bench.reload(job)
    assert (seen.status, seen.attempts, seen.failures, seen.crashes) == (JobStatus.QUEUED, 4, 2, 2)


async def test_one_sweep_judges_each_job_separately(bench: Bench) -> None:
    await bench.jobs.define(Definition(type="poison", crash_cap=1))
    returned = await bench.make_claim()
    dead = await bench.make_claim("poison")
    canceled = await bench.make_claim("other")
    await bench.jobs.cancel(bench.tenant, canceled.job.id)
    bench.clock.advance(seconds=LEASE_SECONDS / 2)
    alive = await bench.make_claim("alive")
    bench.clock.advance(seconds=LEASE_SECONDS / 2)
    assert (await bench.jobs.maintain()).swept == 3
    statuses = [(await bench.reload(claim)).status for claim in (returned, dead, canceled, alive)]
    assert statuses == [JobStatus.QUEUED, JobStatus.DEAD, JobStatus.CANCELED, JobStatus.RUNNING]


async def test_no_lease_is_swept_within_one_lease_after_the_store_opens(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        claim = await bench.make_claim()
    clock.advance(days=1)
    store = await open_store(engine, tmp_path / "data", clock)
    try:
        jobs = Jobs(store, lease_seconds=LEASE_SECONDS)
        clock.advance(seconds=LEASE_SECONDS - 1)
        assert (await jobs.maintain(), await jobs.claim("other", ["noop"])) == (MaintenanceResult(), [])
        assert (await jobs.get(claim.job.tenant, claim.job.id)).status is JobStatus.RUNNING
        clock.advance(seconds=1)
        assert (await jobs.maintain()).swept == 1
    finally:
        await store.close()


async def test_a_worker_can_complete_its_job_after_an_outage(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        claim = await bench.make_claim()
    clock.advance(days=1)
    store = await open_store(engine, tmp_path / "data", clock)
    try:
        jobs = Jobs(store, lease_seconds=LEASE_SECONDS)
        await jobs.claim("other", ["noop"])
        assert (await jobs.complete(claim, 1)).status is JobStatus.SUCCEEDED
    finally:
        await store.close()


async def _crash_until_finished(bench: Bench, job: Job) -> int:
    """Claim a job and let its lease expire until it is finished, and return how often it ran."""
    runs = 0
    while await bench.jobs.claim("worker", [job.type]):
        runs += 1
        bench.clock.advance(seconds=LEASE_SECONDS)
        await bench.jobs.maintain()
        bench.clock.advance(seconds=5)
        assert runs < 10
    return runs
