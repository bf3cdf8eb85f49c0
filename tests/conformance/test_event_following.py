"""Following the log from its end: positions, notifications, and that no event is missed."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from ingot.events import feeds
from ingot.events.feeds import Feeds, feed_item
from ingot.events.model import Event
from ingot.events.ports import GetNewestEventId
from ingot.events.service import START
from ingot.identity import TenantNotFound
from ingot.jobs.job_options import new_job
from ingot.kernel.clock import ManualClock, to_datetime
from ingot.kernel.ids import new_id
from ingot.kernel.pages import InvalidCursor
from tests.conformance.snapshots import refuses
from tests.factories import Bench, open_bench, open_store
from tests.waiting import eventually


async def test_the_newest_position_of_an_empty_log_is_its_start(bench: Bench) -> None:
    assert await bench.events.newest(bench.tenant) == START


@pytest.mark.parametrize("number", [1, 2, 600])
async def test_the_newest_event_is_the_last_one_read(bench: Bench, number: int) -> None:
    await bench.jobs.enqueue_many([new_job(bench.tenant, "noop") for _ in range(number)])
    events: list[Event] = []
    while len(events) < number:
        events = await bench.events.read(bench.tenant, limit=1000)
    assert await bench.events.newest(bench.tenant) == events[-1].id


async def test_the_newest_event_of_one_tenant_is_not_that_of_another(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    await bench.make_job()
    assert await bench.events.newest(other.id) == START
    async with refuses(bench, TenantNotFound):
        await bench.events.newest(new_id())


async def test_a_reader_from_the_newest_event_misses_nothing_beside_many_writers(bench: Bench) -> None:
    before, after = [new_job(bench.tenant, "noop") for _ in range(100)], [new_job(bench.tenant, "noop") for _ in "1234"]
    writing = [asyncio.ensure_future(bench.jobs.enqueue_many([order])) for order in before]
    positions = []
    for order in after:
        await writing.pop(0)
        positions.append((await bench.events.newest(bench.tenant), order.id))
        await bench.jobs.enqueue_many([order])
    await asyncio.gather(*writing)
    for position, made_later in positions:
        seen: list[str] = []
        while made_later not in seen:
            read = await bench.events.read(bench.tenant, after=position or None, limit=1000)
            seen = [msgspec.json.decode(event.data)["id"] for event in read]


async def test_a_position_that_no_event_can_have_is_refused(bench: Bench) -> None:
    await bench.make_job()
    newest = await bench.store.run(GetNewestEventId(tenant=bench.tenant, stable=False))
    assert newest is not None
    assert await bench.events.check_position(bench.tenant, newest) == newest
    for wrong in (f"{int(newest, 16) + 1:016x}", newest.upper() + "0", newest[1:], "", "0" * 15 + "\n"):
        async with refuses(bench, InvalidCursor):
            await bench.events.check_position(bench.tenant, wrong)


async def test_the_listener_receives_the_tenant_of_each_event_batch(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    notified_tenants: list[str] = []
    bench.store.on_event(notified_tenants.append)
    claim = await bench.make_claim()
    assert notified_tenants == [bench.tenant] * 2
    await bench.jobs.complete(claim)
    assert notified_tenants == [bench.tenant] * 3
    await bench.make_job(tenant=other.id)
    assert notified_tenants == [bench.tenant] * 3 + [other.id]
    await bench.jobs.claim("worker", ["nothing"])
    assert len(notified_tenants) == 4


async def read_ids_until(following: AsyncGenerator[bytes, None], last: str) -> list[str]:
    """The IDs in the stream up to this one."""
    frames = b""
    async with asyncio.timeout(30):
        while f"id: {last}\n".encode() not in frames:
            frames += await anext(following)
    return re.findall(r"^id: (\w+)$", frames.decode(), re.MULTILINE)


async def test_a_follower_from_any_position_receives_every_later_event_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "RECENT_EVENTS_MAX", 5)
    monkeypatch.setattr(feeds, "READ_EVENTS_MAX", 4)
    tenant = bench.tenant
    following = feeds.Feeds(bench.events, bench.clock)
    steady = await following.follow(tenant, None, lambda *_: True)
    await anext(steady)
    ids: list[str] = []
    for together in (7, 1, 3, 6, 2):
        await bench.jobs.enqueue_many([new_job(tenant, "noop") for _ in range(together)])
        newest = await bench.store.run(GetNewestEventId(tenant=tenant, stable=False))
        assert newest is not None
        ids += await read_ids_until(steady, newest)
    assert [event.id for event in await bench.events.read(tenant, limit=1000)] == ids
    for index, after in enumerate(ids[:-1]):
        again = await following.follow(tenant, after, lambda *_: True)
        assert await read_ids_until(again, ids[-1]) == ids[index + 1 :]
        await again.aclose()
    await steady.aclose()
    assert len(following) == 0


@pytest.mark.postgres
async def test_many_followers_are_woken_in_several_turns_of_the_event_loop(bench: Bench) -> None:
    following = Feeds(bench.events, bench.clock)
    turn = 0
    turns: Counter[int] = Counter()

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def follow() -> None:
        stream = await following.follow(bench.tenant, None, lambda *_: True)
        await anext(stream)
        ready.append(stream)
        while b"town.built" not in await anext(stream):
            pass
        turns[turn] += 1
        await stream.aclose()

    ready: list[AsyncGenerator[bytes, None]] = []
    followers = [asyncio.create_task(follow()) for _ in range(5 * feeds.GROUP_FOLLOWERS_MAX)]
    await eventually(lambda: len(ready) == len(followers))
    counting = asyncio.create_task(count_turns())
    await bench.events.publish(bench.tenant, "town.built")
    following.notify(bench.tenant)
    await asyncio.gather(*followers)
    counting.cancel()
    assert max(turns.values()) <= feeds.GROUP_FOLLOWERS_MAX
    await following.close()


async def test_a_follower_receives_events_written_by_another_process(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench("postgres", tmp_path / "data", clock) as bench:
        other = await open_store("postgres", tmp_path / "data", clock)
        other_feeds = Feeds(type(bench.events)(other), clock)
        try:
            following = await other_feeds.follow(bench.tenant, None, lambda *_: True)
            frames = await anext(following)
            job = await bench.make_job()
            async with asyncio.timeout(30):
                while job.id.encode() not in frames:
                    frames += await anext(following)
            await following.aclose()
            assert len(other_feeds) == 0
        finally:
            await other_feeds.close()
            await other.close()


@pytest.mark.parametrize("data", ['{\n"a": 1,\r\n"b": [1,\r2]}', r'"\n\nevent: x\ndata: 1\r"', '"\u2028\u0085\x0b"'])
def test_an_event_frame_has_five_lines_whatever_its_data_contains(data: str) -> None:
    raw = msgspec.Raw(data.replace("\x0b", "\\u000b").encode())
    event = Event(id="0" * 16, tenant=new_id(), name="a.b", at=to_datetime(0), data=raw)
    lines = feed_item(event, event.id).frame.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    assert [line.partition(b":")[0] for line in lines] == [b"id", b"event", b"data", b"", b""]
    assert msgspec.json.decode(lines[2].removeprefix(b"data: "))["data"] == msgspec.json.decode(raw)
