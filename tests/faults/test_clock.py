"""A wall clock that jumps a day forward or back: no lease is lost or doubled, and jobs run at the time of the clock."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ingot.engines.sqlite import SQLiteStore
from ingot.engines.sqlite.store_folder import AHEAD_MICROS_MAX, FILE_NAME
from ingot.identity import Tenants
from ingot.jobs import JobStatus, LeaseLost
from ingot.kernel.clock import MICROS, ManualClock, SystemClock
from tests.factories import LEASE_SECONDS, Bench
from tests.faults.sqlite_rules import broken_rules
from tests.faults.tables import open_file

JUMPS = [1.0, -1.0]
NANOSECONDS = 10**9
AHEAD_SECONDS = AHEAD_MICROS_MAX / MICROS

both_ways = pytest.mark.parametrize("days", JUMPS, ids=["forward", "back"])


@asynccontextmanager
async def open_bench_at(folder: Path, clock: ManualClock) -> AsyncIterator[Bench]:
    """Open a store, which may not sweep yet. Its file must satisfy every rule when it is closed."""
    store = await SQLiteStore.open(folder, clock=clock, lease_seconds=LEASE_SECONDS)
    try:
        yield Bench(store, clock, await Tenants(store).ensure_default())
    finally:
        await store.close()
        with closing(open_file(folder / FILE_NAME)) as connection:
            assert broken_rules(connection, clock_went_back=True) == []


@both_ways
async def test_a_clock_jump_while_the_store_is_closed_ends_no_lease(tmp_path: Path, days: float) -> None:
    clock = ManualClock()
    async with open_bench_at(tmp_path, clock) as bench:
        claim = await bench.make_claim()
    clock.advance(days=days)
    async with open_bench_at(tmp_path, clock) as bench:
        for _ in range(10):
            clock.advance(seconds=LEASE_SECONDS / 11)
            assert (await bench.jobs.maintain()).swept == 0
            assert await bench.jobs.claim("other", ["noop"]) == []
        await bench.jobs.heartbeat(claim.job.id, claim.fence)
        clock.advance(seconds=LEASE_SECONDS / 2)
        assert (await bench.jobs.maintain()).swept == 0
        assert (await bench.jobs.complete(claim)).status is JobStatus.SUCCEEDED


@both_ways
async def test_a_silent_worker_is_swept_one_lease_after_the_store_is_opened(tmp_path: Path, days: float) -> None:
    clock = ManualClock()
    async with open_bench_at(tmp_path, clock) as bench:
        claim = await bench.make_claim()
    clock.advance(days=days)
    async with open_bench_at(tmp_path, clock) as bench:
        clock.advance(seconds=LEASE_SECONDS - 0.001)
        assert (await bench.jobs.maintain()).swept == 0
        clock.advance(seconds=0.001)
        assert (await bench.jobs.maintain()).swept == 1
        with pytest.raises(LeaseLost):
            await bench.jobs.complete(claim)
        clock.advance(seconds=5)
        (new_claim,) = await bench.jobs.claim("other", ["noop"])
        assert (new_claim.job.id, new_claim.job.crashes) == (claim.job.id, 1)
        assert new_claim.fence > claim.fence


async def test_delayed_jobs_run_at_once_after_a_clock_jump_forward_while_the_store_is_closed(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench_at(tmp_path, clock) as bench:
        job = await bench.make_job(delay=60)
    clock.advance(days=1)
    async with open_bench_at(tmp_path, clock) as bench:
        assert [claim.job.id for claim in await bench.jobs.claim("worker", ["noop"])] == [job.id]


@both_ways
async def test_backoff_and_blocked_jobs_are_not_delayed_by_a_clock_jump(tmp_path: Path, days: float) -> None:
    clock = ManualClock()
    async with open_bench_at(tmp_path, clock) as bench:
        await bench.jobs.fail(await bench.make_claim("fails"), "try again")
        snoozed = await bench.make_claim("snoozes")
        await bench.jobs.snooze(snoozed, 40)
        parent = await bench.make_claim("parent")
        await bench.make_job("child", after=[parent.job.id])
    clock.advance(days=days)
    async with open_bench_at(tmp_path, clock) as bench:
        await bench.jobs.complete(parent)
        assert len(await bench.jobs.claim("worker", ["child"])) == 1
        if days < 0:
            clock.advance(seconds=39)
            assert await bench.jobs.claim("worker", ["snoozes"]) == []
        clock.advance(seconds=2)
        assert len(await bench.jobs.claim("worker", ["fails"])) == 1
        assert len(await bench.jobs.claim("worker", ["snoozes"])) == 1


async def test_jobs_do_not_run_early_after_a_clock_that_was_a_day_ahead_once_is_corrected(tmp_path: Path) -> None:
    clock = ManualClock()
    right_clock = ManualClock()
    async with open_bench_at(tmp_path, clock) as bench:
        soon = await bench.make_job("soon", run_at=clock.now() + timedelta(days=2))
    clock.advance(days=1)
    async with open_bench_at(tmp_path, clock) as bench:
        await bench.make_job("early")
        held = await bench.make_claim("held")
        assert held.lease_expires_at > right_clock.now() + timedelta(days=1)
    for _ in range(3):
        with capture_logs() as logs:
            async with open_bench_at(tmp_path, right_clock) as bench:
                assert [entry["event"] for entry in logs] == ["stored_times_in_the_future"]
                later = await bench.make_job("later", run_at=right_clock.now() + timedelta(hours=1))
                listed = await bench.jobs.list(bench.tenant, created_after=right_clock.now() + timedelta(hours=2))
                assert later.id in {job.id for job in listed.items}, "a list by creation time misses a new job"
                right_clock.advance(seconds=3600 - AHEAD_SECONDS - 1)
                assert await bench.jobs.claim("worker", ["later", "soon"]) == []
                right_clock.advance(seconds=AHEAD_SECONDS + 1)
                (claim,) = await bench.jobs.claim("worker", ["later"])
                assert claim.job.id == later.id
                await bench.jobs.complete(claim)
                assert (await bench.reload(held)).crashes == 1, "the lease from the wrong time did not end"
    right_clock.advance(days=2)
    with capture_logs() as logs:
        async with open_bench_at(tmp_path, right_clock) as bench:
            assert logs == []
            assert [claim.job.id for claim in await bench.jobs.claim("worker", ["soon"])] == [soon.id]


async def test_a_small_correction_of_the_clock_does_not_let_times_go_back(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench_at(tmp_path, clock) as bench:
        before = await bench.make_claim()
    clock.advance(seconds=-AHEAD_SECONDS)
    with capture_logs() as logs:
        async with open_bench_at(tmp_path, clock) as bench:
            after = await bench.make_claim("after")
            assert before.job.started_at is not None
            assert after.job.started_at is not None
            assert before.job.started_at <= after.job.started_at
    assert logs == []


@both_ways
async def test_new_leases_and_delays_are_exact_after_a_clock_jump(tmp_path: Path, days: float) -> None:
    """Leases and delays that begin after the jump last exactly as long as requested."""
    clock = ManualClock()
    async with open_bench_at(tmp_path, clock) as bench:
        before = await bench.make_job()
    clock.advance(days=days)
    async with open_bench_at(tmp_path, clock) as bench:
        (claim,) = await bench.jobs.claim("worker", ["noop"])
        later = await bench.make_job("later", delay=30)
        assert before.created_at <= later.created_at
        assert claim.job.started_at is not None
        assert (claim.lease_expires_at - claim.job.started_at).total_seconds() == LEASE_SECONDS
        clock.advance(seconds=30)
        assert len(await bench.jobs.claim("worker", ["later"])) == 1
        clock.advance(seconds=LEASE_SECONDS - 30)
        assert (await bench.jobs.maintain()).swept == 1


async def test_creation_times_and_fences_keep_increasing_after_many_clock_jumps(tmp_path: Path) -> None:
    clock = ManualClock()
    fences, created = [], []
    for days in (1, -1, -1, 3, -2, 0.5, -4, 1):
        clock.advance(days=days)
        async with open_bench_at(tmp_path, clock) as bench:
            await bench.make_job()
            (claim,) = await bench.jobs.claim("worker", ["noop"])
            clock.advance(seconds=1)
            await bench.jobs.complete(claim)
            job = await bench.reload(claim)
            assert job.started_at is not None
            assert job.finished_at is not None
            assert (job.finished_at - job.started_at).total_seconds() == 1
            created.append(job.created_at)
            fences.append(claim.fence)
    assert created == sorted(created)
    assert fences == sorted(set(fences))


async def test_a_clock_that_jumps_back_does_not_shorten_or_extend_a_running_lease(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench_at(tmp_path, clock) as bench:
        claim = await bench.make_claim()
        clock.advance(days=-1)
        beat = await bench.jobs.heartbeat(claim.job.id, claim.fence)
        assert beat.lease_expires_at >= claim.lease_expires_at
        clock.advance(seconds=LEASE_SECONDS - 1)
        assert (await bench.jobs.maintain()).swept == 0
        clock.advance(seconds=1)
        assert (await bench.jobs.maintain()).swept == 1


class FakeTime:
    """The clocks of the system, moved by hand: the wall clock can jump, the monotonic clock only advances."""

    def __init__(self) -> None:
        self.wall = 1_800_000_000 * NANOSECONDS
        self.monotonic = 1000 * NANOSECONDS

    def time_ns(self) -> int:
        return self.wall

    def monotonic_ns(self) -> int:
        return self.monotonic

    def advance(self, seconds: float) -> None:
        self.wall += round(seconds * NANOSECONDS)
        self.monotonic += round(seconds * NANOSECONDS)

    def jump(self, days: float) -> None:
        self.wall += round(days * 86_400 * NANOSECONDS)


@both_ways
async def test_a_running_process_ignores_jumps_of_the_wall_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: float
) -> None:
    system = FakeTime()
    monkeypatch.setattr(time, "time_ns", system.time_ns)
    monkeypatch.setattr(time, "monotonic_ns", system.monotonic_ns)
    store = await SQLiteStore.open(tmp_path, clock=SystemClock(), lease_seconds=LEASE_SECONDS)
    bench = Bench(store, ManualClock(), await Tenants(store).ensure_default())
    beating, silent = await bench.make_claim("held"), await bench.make_claim("silent")
    await bench.make_job("later", delay=LEASE_SECONDS)
    system.advance(LEASE_SECONDS / 2)
    system.jump(days)
    assert await bench.jobs.claim("worker", ["later", "held", "silent"]) == []
    beat = await bench.jobs.heartbeat(beating.job.id, beating.fence)
    assert (beat.lease_expires_at - beating.lease_expires_at).total_seconds() == LEASE_SECONDS / 2
    system.advance(LEASE_SECONDS / 2)
    assert (await bench.jobs.maintain()).swept == 1
    assert [claim.job.type for claim in await bench.jobs.claim("worker", ["later"])] == ["later"]
    assert (await bench.reload(silent)).crashes == 1
    assert (await bench.jobs.complete(beating)).status is JobStatus.SUCCEEDED
    await store.close()
