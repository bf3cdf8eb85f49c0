"""Events: one log per tenant, appended with the change, readable from any position without gap or repeat."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec
import pytest

from ingot.events import Event
from ingot.identity import TenantNotFound
from ingot.jobs import Progress
from ingot.jobs.job_options import new_job
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from ingot.kernel.pages import InvalidCursor
from tests.conformance.snapshots import refuses, refuses_each
from tests.factories import LEASE_SECONDS, Bench


async def test_all_changes_of_a_job_are_published_in_order(bench: Bench) -> None:
    await bench.jobs.fail(await bench.make_claim(max_attempts=2), "no")
    bench.clock.advance(seconds=3600)
    (claim,) = await bench.jobs.claim("worker", ["noop"])
    await bench.jobs.heartbeat(claim.job.id, claim.fence, progress=Progress(percent=1))
    await bench.jobs.fail(claim, "no")
    await bench.jobs.retry(bench.tenant, claim.job.id)
    (claim,) = await bench.jobs.claim("worker", ["noop"])
    await bench.jobs.complete(claim)
    assert await bench.event_names() == [
        "job.created",
        "job.started",
        "job.failed",
        "job.started",
        "job.updated",
        "job.failed",
        "job.dead",
        "job.retried",
        "job.started",
        "job.completed",
    ]


async def test_an_event_contains_name_time_and_job_state(bench: Bench) -> None:
    claim = await bench.make_claim()
    bench.clock.advance(seconds=9)
    await bench.jobs.fail(claim, "broken")
    event = (await bench.events.read(bench.tenant))[-1]
    job = await bench.reload(claim)
    assert (event.tenant, event.name, event.at) == (bench.tenant, "job.failed", bench.clock.now())
    data = msgspec.json.decode(event.data)
    assert data == {
        "id": job.id,
        "type": "noop",
        "status": "queued",
        "attempts": 1,
        "failures": 1,
        "fence": claim.fence,
        "run_at": job.run_at.isoformat().replace("+00:00", "Z"),
        "will_retry": True,
        "error": "broken",
    }


async def test_events_never_carry_payload_result_or_metadata(bench: Bench) -> None:
    claim = await bench.make_claim(payload="canary-1", metadata="canary-2")
    await bench.jobs.complete(claim, "canary-3")
    published = b"".join(bytes(event.data) for event in await bench.events.read(bench.tenant))
    assert b"canary" not in published


async def test_ids_grow_over_batches_and_within_them(bench: Bench) -> None:
    await bench.jobs.enqueue_many([new_job(bench.tenant, "noop") for _ in range(30)])
    await bench.make_job()
    ids = [event.id for event in await bench.events.read(bench.tenant, limit=1000)]
    assert sorted(set(ids)) == ids


@pytest.mark.parametrize("limit", [1, 2, 7, 1000])
async def test_reading_from_the_last_id_misses_and_repeats_nothing(bench: Bench, limit: int) -> None:
    await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", n) for n in range(15)])
    for claim in await bench.jobs.claim("worker", ["noop"], limit=5):
        await bench.jobs.complete(claim)
    whole = await bench.events.read(bench.tenant, limit=1000)
    read: list[Event] = []
    for _ in range(100):
        part = await bench.events.read(bench.tenant, after=read[-1].id if read else None, limit=limit)
        assert len(part) <= limit
        read += part
        if not part:
            break
    assert len(whole) == 25
    assert [(event.id, event.name) for event in read] == [(event.id, event.name) for event in whole]


async def test_a_batch_of_1500_jobs_publishes_every_event_in_order(bench: Bench) -> None:
    orders = [new_job(bench.tenant, "noop") for _ in range(1500)]
    await bench.jobs.enqueue_many(orders)
    first = await bench.events.read(bench.tenant, limit=1000)
    rest = await bench.events.read(bench.tenant, after=first[-1].id, limit=1000)
    published = [msgspec.json.decode(event.data)["id"] for event in [*first, *rest]]
    assert published == [order.id for order in orders]


async def test_a_reader_concurrent_with_many_writers_misses_nothing(bench: Bench) -> None:
    read: list[Event] = []

    async def follow() -> None:
        while len(read) < 300:
            read.extend(await bench.events.read(bench.tenant, after=read[-1].id if read else None, limit=40))

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(follow())
        for n in range(300):
            group.create_task(bench.make_job("noop", n))
    stored = await bench.events.read(bench.tenant, limit=1000)
    assert [event.id for event in read] == [event.id for event in stored]
    assert len({msgspec.json.decode(event.data)["id"] for event in read}) == 300


async def test_the_log_of_one_tenant_holds_nothing_of_another(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    mine, others = await asyncio.gather(bench.make_job(), bench.make_job(tenant=other.id))
    logs = [await bench.events.read(tenant) for tenant in (bench.tenant, other.id)]
    published = [[msgspec.json.decode(event.data)["id"] for event in log] for log in logs]
    assert published == [[mine.id], [others.id]]


async def test_a_cursor_of_another_tenant_shows_only_own_events(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    await bench.make_job()
    (event,) = await bench.events.read(bench.tenant)
    job = await bench.make_job(tenant=other.id)
    read = await bench.events.read(other.id, after=event.id)
    assert [msgspec.json.decode(found.data)["id"] for found in read] == [job.id]


async def test_a_read_without_new_events_returns_an_empty_list(bench: Bench) -> None:
    assert await bench.events.read(bench.tenant) == []
    await bench.make_job()
    (event,) = await bench.events.read(bench.tenant)
    assert await bench.events.read(bench.tenant, after=event.id) == []


async def test_an_unknown_tenant_is_refused(bench: Bench) -> None:
    await bench.make_job()
    async with refuses(bench, TenantNotFound):
        await bench.events.read(new_id())


async def test_a_refused_command_publishes_nothing_even_when_batched_with_accepted_ones(bench: Bench) -> None:
    await bench.make_job(dedupe_key="d")
    await asyncio.gather(
        bench.make_job(),
        bench.jobs.enqueue(bench.tenant, "noop", dedupe_key="d"),
        bench.jobs.cancel(bench.tenant, new_id()),
        return_exceptions=True,
    )
    assert await bench.event_names() == ["job.created", "job.created"]


async def test_a_sweep_publishes_an_event_for_each_lost_job(bench: Bench) -> None:
    for _ in range(3):
        await bench.make_claim()
    bench.clock.advance(seconds=LEASE_SECONDS)
    await bench.jobs.maintain()
    assert (await bench.event_names()).count("job.failed") == 3


async def test_a_malformed_event_id_is_an_invalid_cursor(bench: Bench) -> None:
    cursors = ["", "x", "0", "-000000000000001", "g" * 16, "0" * 17, "\ud800", "0" * 15 + "\x00"]
    calls = {repr(after): partial(bench.events.read, bench.tenant, after=after) for after in cursors}
    await refuses_each(bench, InvalidCursor, calls)


async def test_the_size_of_a_page_of_events_is_limited(bench: Bench) -> None:
    calls = {str(limit): partial(bench.events.read, bench.tenant, limit=limit) for limit in (0, -1, 1001, 10**30)}
    await refuses_each(bench, InvalidInput, calls)
