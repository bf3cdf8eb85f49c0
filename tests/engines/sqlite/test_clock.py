"""The time of an open SQLite store never goes backwards, and times of creation never do."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from ingot.kernel.clock import ManualClock
from tests.factories import open_bench


async def test_times_of_events_never_go_backwards(tmp_path: Path) -> None:
    async with open_bench("sqlite", tmp_path / "data") as bench:
        await bench.make_job()
        bench.clock.advance(days=-1)
        await bench.make_job()
        bench.clock.advance(days=3)
        await bench.make_job()
        times = [event.at for event in await bench.events.read(bench.tenant)]
    assert sorted(times) == times
    assert times[2] - times[0] >= timedelta(days=2)


async def test_times_of_creation_do_not_go_backwards_across_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench("sqlite", tmp_path / "data", clock) as bench:
        first = await bench.make_job()
    clock.advance(days=-1)
    async with open_bench("sqlite", tmp_path / "data", clock) as bench:
        second = await bench.make_job()
        assert second.created_at >= first.created_at
        claims = await bench.jobs.claim("worker", ["noop"], limit=10)
        assert {claim.job.id for claim in claims} == {first.id, second.id}
