"""Retention of events: old ones go, ids go on, and who was behind is told."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from ingot.events import Event, Gap
from ingot.events.retention import EventRetention
from ingot.jobs.job_options import new_job
from ingot.kernel.clock import MICROS, ManualClock
from tests.conformance.job_endings import all_events
from tests.conformance.snapshots import refuses
from tests.factories import Bench, open_bench

DAY = 86_400
KEEP = 30 * DAY * MICROS


async def live(bench: Bench, days: int = 3, each: int = 4) -> list[Event]:
    """Some days with some events on each, together and alone."""
    for _ in range(days):
        await bench.jobs.enqueue_many([new_job(bench.tenant, "noop") for _ in range(each - 1)])
        await bench.events.publish(bench.tenant, "day.over")
        bench.clock.advance(days=1)
    return await all_events(bench)


async def forget(bench: Bench, keep: int | None = KEEP, limit: int = 100) -> int:
    await all_events(bench)  # Events that cannot be read yet are not removed.
    return (await bench.events.forget(keep=keep, limit=limit)).batches


async def test_events_are_kept_for_their_time_and_no_longer(bench: Bench) -> None:
    events = await live(bench)
    bench.clock.advance(days=27, seconds=-1)
    assert await forget(bench) == 0
    bench.clock.advance(seconds=1)
    assert await forget(bench) == 2
    assert await bench.events.read(bench.tenant, limit=1000) == events[4:]
    assert await forget(bench) == 0


async def test_without_a_time_they_are_kept_for_ever(bench: Bench) -> None:
    events = await live(bench)
    bench.clock.advance(days=10_000)
    assert await forget(bench, None) == 0
    assert await bench.events.read(bench.tenant, limit=1000) == events


async def test_the_newest_batch_stays_and_ids_go_on_from_it(tmp_path: Path, engine: str) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        events = await live(bench)
        clock.advance(days=1000)
        assert await forget(bench) == 5
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        assert await all_events(bench) == events[-1:]
        assert await bench.events.newest(bench.tenant) == events[-1].id
        made = await bench.events.publish(bench.tenant, "a.b")
        assert made.id > events[-1].id
        assert [event.id for event in await all_events(bench)] == [events[-1].id, made.id]


async def test_a_round_is_bounded_and_says_whether_there_is_more(bench: Bench) -> None:
    events = await live(bench)
    bench.clock.advance(days=1000)
    rounds = [await bench.events.forget(keep=KEEP, limit=2) for _ in range(4)]
    assert [(one.batches, one.more) for one in rounds] == [(2, True), (2, True), (1, False), (0, False)]
    assert await bench.events.read(bench.tenant) == events[-1:]


async def test_who_is_behind_what_is_kept_is_told_and_can_go_on(bench: Bench) -> None:
    events = await live(bench)
    bench.clock.advance(days=27)
    await forget(bench)
    for event in events[:3]:
        with pytest.raises(Gap) as told:
            await bench.events.read(bench.tenant, after=event.id)
        assert told.value.after == events[3].id
        assert await bench.events.read(bench.tenant, after=told.value.after, limit=1000) == events[4:]
    async with refuses(bench, Gap):
        await bench.events.read(bench.tenant, after="0" * 16)


async def test_who_had_read_all_that_was_removed_has_no_gap(bench: Bench) -> None:
    events = await live(bench)
    bench.clock.advance(days=1000)
    await forget(bench)
    for event, rest in ((events[-2], events[-1:]), (events[-1], [])):
        assert await bench.events.read(bench.tenant, after=event.id) == rest


async def test_what_is_removed_of_one_tenant_is_no_gap_of_another(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    await bench.events.publish(other.id, "a.b")
    bench.clock.advance(days=29)
    first = await bench.events.publish(bench.tenant, "a.b")
    second = await bench.events.publish(bench.tenant, "a.b")
    await bench.events.publish(other.id, "a.b")
    bench.clock.advance(days=1)
    assert await forget(bench) == 1
    assert [event.id for event in await bench.events.read(bench.tenant, after=first.id)] == [second.id]
    async with refuses(bench, Gap):
        await bench.events.read(other.id, after="0" * 16)


async def test_the_floor_stands_behind_the_last_event_of_what_happened_together(bench: Bench) -> None:
    await bench.jobs.enqueue_many([new_job(bench.tenant, "noop") for _ in range(9)])
    await bench.jobs.claim("worker", ["noop"], limit=9)
    await bench.make_job()
    events = await all_events(bench)
    bench.clock.advance(days=31)
    assert await forget(bench) == 2
    assert await bench.events.read(bench.tenant, after=events[17].id) == events[18:]
    async with refuses(bench, Gap):
        await bench.events.read(bench.tenant, after=events[16].id)


async def test_a_reader_beside_the_removal_sees_all_or_is_told(bench: Bench) -> None:
    events = await live(bench, days=40, each=3)
    ids = [event.id for event in events]
    bench.clock.advance(days=1000)

    async def read() -> list[tuple[str, bool]]:
        """The ids that were read, and those of gaps."""
        seen: list[tuple[str, bool]] = []
        while not seen or seen[-1][0] != ids[-1]:
            try:
                part = await bench.events.read(bench.tenant, after=seen[-1][0] if seen else None, limit=7)
                seen += [(event.id, False) for event in part]
            except Gap as gap:
                seen.append((gap.after, True))
        return seen

    async def remove() -> None:
        while (await bench.events.forget(keep=KEEP, limit=5)).more:
            pass

    removing = asyncio.ensure_future(remove())
    for seen in await asyncio.gather(*(read() for _ in range(6))):
        for (one, _), (next_one, is_gap) in pairwise(seen):
            assert is_gap or ids.index(next_one) == ids.index(one) + 1
    await removing


async def test_the_loop_removes_what_its_days_say(bench: Bench) -> None:
    await live(bench)
    bench.clock.advance(days=1)
    assert (await EventRetention(bench.store, days=0).run_once()).batches == 0
    assert (await EventRetention(bench.store, days=3).run_once()).batches == 4
