"""Retention of events: old events are removed, IDs continue to grow, and readers that fell behind get a gap."""

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


async def publish_over_days(bench: Bench, days: int = 3, each: int = 4) -> list[Event]:
    """Publish events on several days, in batches and singly, and return all of them."""
    for _ in range(days):
        await bench.jobs.enqueue_many([new_job(bench.tenant, "noop") for _ in range(each - 1)])
        await bench.events.publish(bench.tenant, "day.over")
        bench.clock.advance(days=1)
    return await all_events(bench)


async def forget_events(bench: Bench, keep: int | None = KEEP, limit: int = 100) -> int:
    await all_events(bench)  # Wait until all events are readable: unreadable ones are not removed.
    return (await bench.events.forget(keep=keep, limit=limit)).batches


async def test_events_are_removed_after_their_retention(bench: Bench) -> None:
    events = await publish_over_days(bench)
    bench.clock.advance(days=27, seconds=-1)
    assert await forget_events(bench) == 0
    bench.clock.advance(seconds=1)
    assert await forget_events(bench) == 2
    assert await bench.events.read(bench.tenant, limit=1000) == events[4:]
    assert await forget_events(bench) == 0


async def test_events_without_a_retention_are_kept_forever(bench: Bench) -> None:
    events = await publish_over_days(bench)
    bench.clock.advance(days=10_000)
    assert await forget_events(bench, None) == 0
    assert await bench.events.read(bench.tenant, limit=1000) == events


async def test_the_newest_batch_is_kept_and_later_ids_are_greater(tmp_path: Path, engine: str) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        events = await publish_over_days(bench)
        clock.advance(days=1000)
        assert await forget_events(bench) == 5
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        assert await all_events(bench) == events[-1:]
        assert await bench.events.newest(bench.tenant) == events[-1].id
        published = await bench.events.publish(bench.tenant, "a.b")
        assert published.id > events[-1].id
        assert [event.id for event in await all_events(bench)] == [events[-1].id, published.id]


async def test_a_pass_is_limited_and_reports_whether_more_remains(bench: Bench) -> None:
    events = await publish_over_days(bench)
    bench.clock.advance(days=1000)
    rounds = [await bench.events.forget(keep=KEEP, limit=2) for _ in range(4)]
    assert [(one.batches, one.more) for one in rounds] == [(2, True), (2, True), (1, False), (0, False)]
    assert await bench.events.read(bench.tenant) == events[-1:]


async def test_a_reader_before_the_kept_events_gets_a_gap_and_can_continue(bench: Bench) -> None:
    events = await publish_over_days(bench)
    bench.clock.advance(days=27)
    await forget_events(bench)
    for event in events[:3]:
        with pytest.raises(Gap) as caught:
            await bench.events.read(bench.tenant, after=event.id)
        assert caught.value.after == events[3].id
        assert await bench.events.read(bench.tenant, after=caught.value.after, limit=1000) == events[4:]
    async with refuses(bench, Gap):
        await bench.events.read(bench.tenant, after="0" * 16)


async def test_a_reader_that_read_all_removed_events_gets_no_gap(bench: Bench) -> None:
    events = await publish_over_days(bench)
    bench.clock.advance(days=1000)
    await forget_events(bench)
    for event, remaining in ((events[-2], events[-1:]), (events[-1], [])):
        assert await bench.events.read(bench.tenant, after=event.id) == remaining


async def test_removed_events_of_one_tenant_cause_no_gap_for_another(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    await bench.events.publish(other.id, "a.b")
    bench.clock.advance(days=29)
    first = await bench.events.publish(bench.tenant, "a.b")
    second = await bench.events.publish(bench.tenant, "a.b")
    await bench.events.publish(other.id, "a.b")
    bench.clock.advance(days=1)
    assert await forget_events(bench) == 1
    assert [event.id for event in await bench.events.read(bench.tenant, after=first.id)] == [second.id]
    async with refuses(bench, Gap):
        await bench.events.read(other.id, after="0" * 16)


async def test_the_gap_ends_at_the_last_event_of_the_removed_batch(bench: Bench) -> None:
    await bench.jobs.enqueue_many([new_job(bench.tenant, "noop") for _ in range(9)])
    await bench.jobs.claim("worker", ["noop"], limit=9)
    await bench.make_job()
    events = await all_events(bench)
    bench.clock.advance(days=31)
    assert await forget_events(bench) == 2
    assert await bench.events.read(bench.tenant, after=events[17].id) == events[18:]
    async with refuses(bench, Gap):
        await bench.events.read(bench.tenant, after=events[16].id)


async def test_a_concurrent_reader_sees_every_event_or_a_gap(bench: Bench) -> None:
    events = await publish_over_days(bench, days=40, each=3)
    ids = [event.id for event in events]
    bench.clock.advance(days=1000)

    async def read() -> list[tuple[str, bool]]:
        """The IDs that were read, each with whether it ended a gap."""
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


async def test_the_loop_removes_events_older_than_its_days(bench: Bench) -> None:
    await publish_over_days(bench)
    bench.clock.advance(days=1)
    assert (await EventRetention(bench.store, days=0).run_once()).batches == 0
    assert (await EventRetention(bench.store, days=3).run_once()).batches == 4
