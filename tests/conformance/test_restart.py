"""Restarts: acknowledged changes are kept, and fences continue to grow."""

from __future__ import annotations

from pathlib import Path

from ingot.identity import Limits
from ingot.jobs import Definition, DuplicateJob, JobStatus, LeaseLost
from ingot.kernel.clock import ManualClock
from tests.conformance.snapshots import refuses, snapshot
from tests.factories import LEASE_SECONDS, Bench, open_bench


async def test_acknowledged_changes_are_kept_across_a_restart(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        await bench.tenants.create("acme", weight=2, time_zone="Asia/Tokyo", limits=Limits(burst=3))
        await bench.jobs.define(Definition(type="noop", tenant=bench.tenant, priority=2, crash_cap=7))
        for status in list(JobStatus)[1:]:
            await bench.make_job_in(status, status.value, payload={"s": status}, tags=["t"], metadata=[1])
        await bench.make_job("later", delay=60)
        before = await snapshot(bench)
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        assert await snapshot(bench) == before


async def test_fences_grow_across_restarts(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    fences: list[int] = []
    for _ in range(4):
        async with open_bench(engine, tmp_path / "data", clock) as bench:
            if not fences:
                await bench.make_job()
            for _ in range(3):
                (claim,) = await bench.jobs.claim("worker", ["noop"])
                fences.append(claim.fence)
                await bench.jobs.release(claim)
    assert len(fences) == 12
    assert sorted(set(fences)) == fences
    assert fences[-1] < 2**53


async def test_a_claim_stays_valid_across_a_restart(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        running, done = await bench.make_claim("held"), await bench.make_claim("done")
        first = await bench.jobs.complete(done, 1)
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        assert (await bench.jobs.heartbeat(running.job.id, running.fence)).job_id == running.job.id
        assert await bench.jobs.complete(done, 1) == first
        async with refuses(bench, LeaseLost):
            await bench.jobs.fail(done, "no")


async def test_waiting_jobs_can_be_claimed_after_a_restart(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        other = await bench.tenants.create("other")
        jobs = [await bench.make_job(type, tenant=tenant) for type in "ab" for tenant in (bench.tenant, other.id)]
        jobs.append(await bench.make_job("a", delay=2 * LEASE_SECONDS))
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        assert bench.store.seconds_to_maintenance() == LEASE_SECONDS
        clock.advance(seconds=LEASE_SECONDS)
        claims = await bench.jobs.claim("worker", ["a", "b"], limit=10)
        assert sorted(claim.job.id for claim in claims) == sorted(job.id for job in jobs)


async def test_idempotency_and_dedupe_keys_apply_across_a_restart(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        made = await bench.make_job("noop", 1, idempotency_key="k", dedupe_key="d")
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        again = await bench.jobs.enqueue(bench.tenant, "noop", 1, idempotency_key="k")
        assert (again.job.id, again.created) == (made.id, False)
        async with refuses(bench, DuplicateJob):
            await bench.jobs.enqueue(bench.tenant, "noop", dedupe_key="d")


async def test_definitions_apply_across_a_restart(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        await bench.jobs.define(Definition(type="noop", priority=1))
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        assert (await bench.make_job()).priority == 1


async def test_event_ids_continue_to_grow_after_a_restart(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        await bench.make_job()
        (first,) = await bench.events.read(bench.tenant)
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        await bench.make_job()
        (second,) = await bench.events.read(bench.tenant, after=first.id)
        assert second.id > first.id


async def _claimed(bench: Bench) -> list[str]:
    return [claim.job.id for claim in await bench.jobs.claim("worker", ["noop"], limit=10)]
