"""Pauses: jobs of a paused type are not handed out, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingot.identity import TenantNotFound
from ingot.jobs import JobStatus, Pause
from ingot.kernel.clock import ManualClock
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from tests.conformance.snapshots import refuses
from tests.factories import Bench, open_bench

TYPES = ["a", "b"]


async def types_started(bench: Bench, *, tenant: str | None = None) -> list[str]:
    return sorted(claim.job.type for claim in await bench.jobs.claim("worker", TYPES, limit=100, tenant=tenant))


async def test_jobs_of_a_paused_type_are_not_claimed_and_others_are(bench: Bench) -> None:
    for type in TYPES:
        await bench.make_job(type, priority=1 if type == "a" else 5)
    await bench.jobs.pause(bench.tenant, "a")
    assert await types_started(bench) == ["b"]
    assert await types_started(bench, tenant=bench.tenant) == []
    await bench.jobs.resume(bench.tenant, "a")
    assert await types_started(bench) == ["a"]


async def test_a_paused_type_accepts_jobs_and_keeps_their_order(bench: Bench) -> None:
    await bench.jobs.pause(bench.tenant, "a")
    late, early = await bench.make_job("a", priority=5), await bench.make_job("a", priority=1)
    later = await bench.make_job("a", priority=2, delay=60)
    bench.clock.advance(seconds=60)
    assert await types_started(bench) == []
    await bench.jobs.resume(bench.tenant, "a")
    claims = await bench.jobs.claim("worker", ["a"], limit=10)
    assert [claim.job.id for claim in claims] == [early.id, later.id, late.id]


async def test_running_jobs_of_a_paused_type_continue(bench: Bench) -> None:
    done, released = [await bench.make_claim("a") for _ in range(2)]
    await bench.jobs.pause(bench.tenant, "a")
    await bench.jobs.heartbeat(done.job.id, done.fence)
    await bench.jobs.complete(done)
    await bench.jobs.release(released)
    assert (await bench.reload(done)).status is JobStatus.SUCCEEDED
    assert await types_started(bench) == []
    await bench.jobs.retry(bench.tenant, done.job.id)
    assert await types_started(bench) == []


async def test_a_pause_applies_to_one_tenant(bench: Bench) -> None:
    other = (await bench.tenants.create("other")).id
    await bench.make_job("a")
    job = await bench.make_job("a", tenant=other)
    await bench.jobs.pause(bench.tenant, "a")
    claims = await bench.jobs.claim("worker", TYPES, limit=10)
    assert [claim.job.id for claim in claims] == [job.id]
    assert await bench.jobs.pauses(other) == []


async def test_pauses_are_listed_by_type_with_time_and_author(bench: Bench) -> None:
    assert await bench.jobs.pauses(bench.tenant) == []
    begun = bench.clock.now()
    pauses = [Pause(type="a", since=begun), Pause(type="b", since=begun, by="ops")]
    assert await bench.jobs.pause(bench.tenant, "b", by="ops") == pauses[1]
    assert await bench.jobs.pause(bench.tenant, "a") == pauses[0]
    assert list(await bench.jobs.pauses(bench.tenant)) == pauses


async def test_a_repeated_pause_changes_nothing(bench: Bench) -> None:
    first = await bench.jobs.pause(bench.tenant, "a", by="one")
    bench.clock.advance(seconds=60)
    assert await bench.jobs.pause(bench.tenant, "a", by="two") == first
    assert list(await bench.jobs.pauses(bench.tenant)) == [first]
    await bench.jobs.resume(bench.tenant, "a")
    assert await bench.jobs.pauses(bench.tenant) == []


async def test_resuming_a_type_that_is_not_paused_changes_nothing(bench: Bench) -> None:
    await bench.jobs.pause(bench.tenant, "b")
    for _ in range(2):
        await bench.jobs.resume(bench.tenant, "a")
    assert [pause.type for pause in await bench.jobs.pauses(bench.tenant)] == ["b"]


async def test_a_pause_is_kept_across_a_restart(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        await bench.make_job("a")
        await bench.make_job("b")
        pause = await bench.jobs.pause(bench.tenant, "a", by="ops")
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        assert list(await bench.jobs.pauses(bench.tenant)) == [pause]
        assert await types_started(bench) == ["b"]
        await bench.jobs.resume(bench.tenant, "a")
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        assert await bench.jobs.pauses(bench.tenant) == []
        assert await types_started(bench) == ["a"]


async def test_a_pause_of_a_missing_tenant_is_refused(bench: Bench) -> None:
    async with refuses(bench, TenantNotFound):
        await bench.jobs.pause(new_id(), "a")


@pytest.mark.parametrize("bad", ["", "a b", "a" * 129])
async def test_a_pause_of_an_invalid_type_is_refused(bench: Bench, bad: str) -> None:
    async with refuses(bench, InvalidInput):
        await bench.jobs.pause(bench.tenant, bad)
    async with refuses(bench, InvalidInput):
        await bench.jobs.resume(bench.tenant, bad)


async def test_a_pause_with_a_too_long_author_is_refused(bench: Bench) -> None:
    async with refuses(bench, InvalidInput):
        await bench.jobs.pause(bench.tenant, "a", by="x" * 513)
    assert await bench.jobs.pauses(bench.tenant) == []
