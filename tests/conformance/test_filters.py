"""Lists by status, type, tag, source and time of creation, alone and combined."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import Any

import pytest

from ingot.identity import TenantNotFound
from ingot.jobs import JobStatus, Source
from ingot.jobs.job_options import new_job
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from ingot.kernel.pages import InvalidCursor
from tests.conformance.filtered_jobs import (
    CHOICES,
    fill,
    fits,
    made_at,
    read_all,
    some_filters,
)
from tests.conformance.job_endings import end
from tests.conformance.snapshots import refuses
from tests.factories import Bench


@pytest.mark.parametrize("ids", ["right", "mixed", "wrong"])
async def test_a_list_contains_exactly_the_jobs_that_match_its_filters(bench: Bench, ids: str) -> None:
    await fill(bench, ids=ids)
    everything = await read_all(bench)
    assert len(everything) == 30
    assert [job.tenant for job in everything] == [bench.tenant] * 30
    wrong = {}
    for filters in some_filters():
        expected = [job.id for job in everything if fits(job, filters)]
        found = [job.id for job in (await bench.jobs.list(bench.tenant, **filters)).items]
        if found != expected:
            wrong[str(filters)] = (found, expected)
    assert wrong == {}


@pytest.mark.parametrize("limit", [1, 2, 7])
async def test_pages_of_a_filtered_list_join_to_the_whole_list(bench: Bench, limit: int) -> None:
    await fill(bench, ids="mixed")
    everything = await read_all(bench)
    for filters in [*({name: values[0]} for name, values in CHOICES.items()), {"status": "dead", "tag": "red"}]:
        expected = [job.id for job in everything if fits(job, filters)]
        assert [job.id for job in await read_all(bench, limit=limit, **filters)] == expected


async def test_created_after_is_inclusive_and_created_before_exclusive(bench: Bench) -> None:
    ids = []
    for _ in range(3):
        ids.append((await bench.make_job()).id)
        bench.clock.advance(seconds=0.000001)
    micro = timedelta(microseconds=1)
    start = (await bench.jobs.get(bench.tenant, ids[0])).created_at
    for first, last in combinations(range(4), 2):
        found = await read_all(bench, created_after=start + first * micro, created_before=start + last * micro)
        assert [job.id for job in found] == ids[first:last][::-1]


@pytest.mark.parametrize(
    "drift", [0, 1, -1, 1.001, -1.001, 60, -60, 61, -61, 3600, -3600, 3601, -3601, 10**8, -(10**8)]
)
async def test_a_job_is_found_by_its_time_whatever_time_its_id_contains(bench: Bench, drift: float) -> None:
    order = made_at(new_job(bench.tenant, "noop"), bench.clock.now() + timedelta(seconds=drift))
    (made,) = await bench.jobs.enqueue_many([order])
    at, micro = made.job.created_at, timedelta(microseconds=1)
    assert [job.id for job in await read_all(bench, created_after=at, created_before=at + micro)] == [order.id]
    assert await read_all(bench, created_after=at + micro) == []
    assert await read_all(bench, created_before=at) == []


async def test_times_need_an_offset_and_may_have_any(bench: Bench) -> None:
    job = await bench.make_job()
    without_offset = job.created_at.astimezone(tz=None).replace(tzinfo=None)
    for moment in (job.created_at.isoformat(), job.created_at.astimezone().isoformat()):
        (found,) = await read_all(bench, created_after=datetime.fromisoformat(moment))
        assert found.id == job.id
    async with refuses(bench, InvalidInput):
        await bench.jobs.list(bench.tenant, created_after=without_offset)


async def test_an_empty_time_range_contains_no_jobs(bench: Bench) -> None:
    job = await bench.make_job()
    assert await read_all(bench, created_after=job.created_at, created_before=job.created_at) == []
    later = job.created_at + timedelta(days=1)
    assert await read_all(bench, created_after=later, created_before=job.created_at) == []
    assert await read_all(bench, created_before=datetime(1900, 1, 1, tzinfo=UTC)) == []


async def test_a_job_that_died_twice_is_listed_once(bench: Bench) -> None:
    job = await bench.make_job_in(JobStatus.DEAD)
    await bench.jobs.retry(bench.tenant, job.id)
    assert await read_all(bench, status=JobStatus.DEAD) == []
    (claim,) = await bench.jobs.claim("worker", ["noop"])
    await bench.jobs.fail(claim, "broken", retry=False)
    for limit in (1, 50):
        assert [found.id for found in await read_all(bench, status=JobStatus.DEAD, limit=limit)] == [job.id]


async def test_blocked_jobs_are_listed_until_they_are_queued(bench: Bench) -> None:
    parent = await bench.make_job("first")
    children = [await bench.make_job(type, after=[parent.id]) for type in ("a", "b", "a")]
    await bench.jobs.enqueue_many([new_job(bench.tenant, "noop") for _ in range(30)])
    for filters, expected in [({}, children), ({"type": "a"}, [children[0], children[2]])]:
        found = await read_all(bench, status=JobStatus.BLOCKED, limit=1, **filters)
        assert [job.id for job in found] == [job.id for job in expected][::-1]
    await bench.jobs.cancel(bench.tenant, children[1].id)
    await end(bench, parent)
    assert await read_all(bench, status=JobStatus.BLOCKED) == []
    (canceled,) = await read_all(bench, status=JobStatus.CANCELED)
    assert canceled.id == children[1].id
    waiting = await read_all(bench, status=JobStatus.QUEUED, type="a")
    assert [job.id for job in waiting] == [children[2].id, children[0].id]


async def test_a_list_by_tag_reflects_changed_tags(bench: Bench) -> None:
    job = await bench.make_job_in(JobStatus.SUCCEEDED, tags=["red"])
    await bench.jobs.reschedule(bench.tenant, job.id, tags=["blue"])
    assert await read_all(bench, tag="red") == []
    assert [found.tags for found in await read_all(bench, tag="blue")] == [("blue",)]


async def test_jobs_that_change_between_pages_are_not_listed_twice(bench: Bench) -> None:
    await bench.jobs.enqueue_many([new_job(bench.tenant, f"type-{n % 3}", tags=["red"]) for n in range(30)])
    without_offset = {job.id for job in await read_all(bench)}
    seen: list[str] = []
    cursor = None
    while True:
        page = await bench.jobs.list(bench.tenant, tag="red", limit=4, cursor=cursor)
        seen += [job.id for job in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
        await bench.make_job(f"type-{len(seen)}", tags=["red"])
        for claim in await bench.jobs.claim("worker", ["type-0", "type-1", "type-2"], limit=3):
            await bench.jobs.complete(claim)
    assert len(seen) == len(set(seen))
    assert without_offset <= set(seen)


async def test_pages_of_many_types_hold_every_job_once(bench: Bench) -> None:
    chance = random.Random(3)
    orders = [new_job(bench.tenant, f"type-{int(chance.expovariate(0.1))}") for _ in range(300)]
    await bench.jobs.enqueue_many(orders)
    for claim in await bench.jobs.claim("worker", sorted({order.type for order in orders}), limit=150):
        await bench.jobs.complete(claim)
    found = await read_all(bench, limit=9)
    assert [job.id for job in found] == [order.id for order in orders][::-1]
    done = await read_all(bench, status=JobStatus.SUCCEEDED, limit=9)
    assert [job.id for job in done] == [job.id for job in found if job.status is JobStatus.SUCCEEDED]


async def test_pages_of_a_thousand_types_are_full(bench: Bench) -> None:
    orders = [new_job(bench.tenant, f"type-{n}") for n in range(1_000)]
    orders += [new_job(bench.tenant, "newest") for _ in range(300)]
    await bench.jobs.enqueue_many(orders)
    seen: list[str] = []
    cursor = None
    for _ in range(13):
        page = await bench.jobs.list(bench.tenant, limit=100, cursor=cursor)
        assert len(page.items) == 100
        seen += [job.id for job in page.items]
        cursor = page.next_cursor
    assert seen == [order.id for order in orders][::-1]
    assert cursor is None


async def test_jobs_of_several_types_stay_in_order_after_many_that_do_not_match(bench: Bench) -> None:
    wanted = [await bench.make_job(type) for type in ("b", "a", "b", "a")]
    await bench.jobs.enqueue_many([new_job(bench.tenant, "a", source=Source.EVENT) for _ in range(1_200)])
    found = await read_all(bench, source=Source.MANUAL)
    assert [job.id for job in found] == [job.id for job in wanted][::-1]


async def test_a_job_with_a_rare_status_after_many_others_is_on_the_first_page(bench: Bench) -> None:
    made = [await bench.make_job_in(status) for status in (JobStatus.DEAD, JobStatus.CANCELED, JobStatus.SUCCEEDED)]
    running = await bench.make_job_in(JobStatus.RUNNING)
    await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", delay=60) for _ in range(10_000)])
    await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", delay=60) for _ in range(1_000)])
    for job in [*made, running]:
        page = await bench.jobs.list(bench.tenant, status=job.status)
        assert ([found.id for found in page.items], page.next_cursor) == ([job.id], None)


async def test_succeeded_jobs_are_listed_after_many_attempts_of_another_tenant(bench: Bench) -> None:
    other = (await bench.tenants.create("other")).id
    mine = [await bench.make_job_in(JobStatus.SUCCEEDED) for _ in range(2)]
    await bench.jobs.enqueue_many([new_job(other, "theirs") for _ in range(1_500)])
    await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", delay=60) for _ in range(3_000)])
    for claim in await bench.jobs.claim("worker", ["theirs"], limit=1_000):
        await bench.jobs.complete(claim)
    found = await read_all(bench, status=JobStatus.SUCCEEDED)
    assert [job.id for job in found] == [job.id for job in mine][::-1]


async def test_a_job_with_a_rare_tag_or_source_after_many_others_is_on_the_first_page(bench: Bench) -> None:
    other = (await bench.tenants.create("other")).id
    await bench.make_job(tenant=other, tags=["rare"], source=Source.EVENT)
    job = await bench.make_job(tags=["rare"], source=Source.EVENT)
    await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", tags=["common"]) for _ in range(10_000)])
    await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", tags=["common"]) for _ in range(1_000)])
    filters: list[dict[str, Any]] = [
        {"tag": "rare"},
        {"source": Source.EVENT},
        {"tag": "rare", "type": "noop", "status": JobStatus.QUEUED},
        {"source": Source.EVENT, "tag": "rare"},
    ]
    for options in filters:
        page = await bench.jobs.list(bench.tenant, **options)
        assert ([found.id for found in page.items], page.next_cursor) == ([job.id], None)


@pytest.mark.parametrize("name", CHOICES)
async def test_a_cursor_of_another_filter_is_refused(bench: Bench, name: str) -> None:
    for _ in range(2):
        await bench.make_job(tags=["red"], source=Source.MANUAL)
    plain = (await bench.jobs.list(bench.tenant, limit=1)).next_cursor
    assert plain is not None
    async with refuses(bench, InvalidCursor):
        await bench.jobs.list(bench.tenant, cursor=plain, **{name: CHOICES[name][0]})


async def test_a_cursor_of_a_filter_with_the_same_value_of_another_kind_is_refused(bench: Bench) -> None:
    for _ in range(2):
        await bench.make_job("red", tags=["red"])
    by_type = (await bench.jobs.list(bench.tenant, type="red", limit=1)).next_cursor
    async with refuses(bench, InvalidCursor):
        await bench.jobs.list(bench.tenant, tag="red", cursor=by_type)
    first = bench.clock.now() - timedelta(days=1)
    by_time = (await bench.jobs.list(bench.tenant, created_after=first, limit=1)).next_cursor
    assert by_time is not None
    others: list[dict[str, Any]] = [{"created_before": first}, {"created_after": first - timedelta(microseconds=1)}]
    for other in others:
        async with refuses(bench, InvalidCursor):
            await bench.jobs.list(bench.tenant, cursor=by_time, **other)


# -- counts -------------------------------------------------------------------------------------------------


async def test_counts_by_type_and_status_are_exact(bench: Bench) -> None:
    await fill(bench, ids="right")
    expected: dict[str, dict[JobStatus, int]] = {}
    for job in await read_all(bench):
        states = expected.setdefault(job.type, {})
        states[job.status] = states.get(job.status, 0) + 1
    counts = await bench.jobs.counts(bench.tenant)
    assert counts == expected
    assert list(counts) == ["a", "b"]


async def test_a_type_without_jobs_is_not_counted(bench: Bench) -> None:
    assert await bench.jobs.counts(bench.tenant) == {}
    await bench.make_job_in(JobStatus.SUCCEEDED)
    assert await bench.jobs.counts(bench.tenant) == {"noop": {JobStatus.SUCCEEDED: 1}}
    async with refuses(bench, TenantNotFound):
        await bench.jobs.counts(new_id())
