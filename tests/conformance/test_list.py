"""Reads: lists in pages, counts, single jobs and their attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from ingot.identity import TenantNotFound
from ingot.jobs import Job, JobNotFound, JobStatus
from ingot.jobs.job_options import new_job
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from ingot.kernel.pages import InvalidCursor
from tests.conformance.snapshots import refuses, refuses_each
from tests.factories import Bench


async def _read_all(bench: Bench, **options: Any) -> list[Job]:
    jobs: list[Job] = []
    cursor = None
    for _ in range(1000):
        page = await bench.jobs.list(bench.tenant, cursor=cursor, **options)
        assert len(page.items) <= options.get("limit", 50)
        jobs += page.items
        cursor = page.next_cursor
        if cursor is None:
            return jobs
    raise AssertionError("the list has no end")


# -- lists --------------------------------------------------------------------------------------------------


async def test_an_empty_list_is_one_empty_page(bench: Bench) -> None:
    page = await bench.jobs.list(bench.tenant)
    assert (page.items, page.next_cursor) == ([], None)


async def test_jobs_are_listed_newest_first(bench: Bench) -> None:
    ids = [(await bench.make_job()).id for _ in range(5)]
    assert [job.id for job in (await bench.jobs.list(bench.tenant)).items] == ids[::-1]


@pytest.mark.parametrize("limit", [1, 3, 10, 11, 1000])
async def test_pages_contain_every_job_once(bench: Bench, limit: int) -> None:
    answers = await bench.jobs.enqueue_many([new_job(bench.tenant, "noop") for _ in range(11)])
    found = await _read_all(bench, limit=limit)
    assert [job.id for job in found] == [answer.job.id for answer in answers][::-1]


@pytest.mark.parametrize("limit", [1, 2, 50])
async def test_a_filter_by_type_finds_all_its_jobs(bench: Bench, limit: int) -> None:
    for n in range(12):
        await bench.make_job("a" if n % 3 else "b")
    found = await _read_all(bench, type="b", limit=limit)
    assert [job.type for job in found] == ["b"] * 4


@pytest.mark.parametrize("status", list(JobStatus)[1:])
async def test_a_filter_by_status_finds_all_its_jobs(bench: Bench, status: JobStatus) -> None:
    ids_by_status = {
        state: [(await bench.make_job_in(state, state.value)).id for _ in range(2)] for state in list(JobStatus)[1:]
    }
    found = await _read_all(bench, status=status, limit=1)
    assert [job.id for job in found] == ids_by_status[status][::-1]


async def test_filters_by_type_and_status_combine(bench: Bench) -> None:
    await bench.make_job_in(JobStatus.DEAD, "a")
    wanted = await bench.make_job_in(JobStatus.DEAD, "b")
    await bench.make_job_in(JobStatus.QUEUED, "b")
    found = await _read_all(bench, type="b", status=JobStatus.DEAD)
    assert [job.id for job in found] == [wanted.id]


async def test_rare_jobs_among_many_are_found_page_by_page(bench: Bench) -> None:
    orders = [new_job(bench.tenant, "rare" if n % 400 == 0 else "noop") for n in range(1600)]
    await bench.jobs.enqueue_many(orders)
    found = await _read_all(bench, type="rare", limit=1)
    assert [job.id for job in found] == [orders[n].id for n in (1200, 800, 400, 0)]


async def test_a_list_contains_no_jobs_of_another_tenant(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    await bench.make_job()
    job = await bench.make_job(tenant=other.id)
    assert [found.id for found in (await bench.jobs.list(other.id)).items] == [job.id]


async def test_an_unknown_tenant_is_refused(bench: Bench) -> None:
    await bench.make_job()
    async with refuses(bench, TenantNotFound):
        await bench.jobs.list(new_id())
    async with refuses(bench, TenantNotFound):
        await bench.jobs.summary(new_id())


async def test_jobs_enqueued_between_pages_do_not_shift_them(bench: Bench) -> None:
    old = [(await bench.make_job()).id for _ in range(6)]
    first = await bench.jobs.list(bench.tenant, limit=3)
    await bench.make_job()
    second = await bench.jobs.list(bench.tenant, limit=3, cursor=first.next_cursor)
    assert [job.id for job in [*first.items, *second.items]] == old[::-1]


async def test_a_listed_job_equals_the_stored_job(bench: Bench) -> None:
    job = await bench.make_job_in(JobStatus.DEAD, payload={"n": 1}, tags=["a"], metadata=[1])
    (listed,) = (await bench.jobs.list(bench.tenant)).items
    names = [name for name in job.__struct_fields__ if name not in ("payload", "metadata", "result")]
    assert [getattr(listed, name) for name in names] == [getattr(job, name) for name in names]
    assert (listed.read(), listed.read("metadata")) == ({"n": 1}, [1])


@pytest.mark.parametrize("limit", [0, -1, 1001, 10**30])
async def test_the_size_of_a_page_is_limited(bench: Bench, limit: int) -> None:
    async with refuses(bench, InvalidInput):
        await bench.jobs.list(bench.tenant, limit=limit)


async def test_a_malformed_cursor_is_refused(bench: Bench) -> None:
    await bench.make_job()
    cursors = ["", "x", "nonsense", "\ud800", "e30", "WzEsIiIsIiJd", "=", "a" * 10_000]
    calls = {repr(cursor): partial(bench.jobs.list, bench.tenant, cursor=cursor) for cursor in cursors}
    await refuses_each(bench, InvalidCursor, calls)


@pytest.mark.parametrize(
    "other", [{"type": "noop"}, {"status": JobStatus.QUEUED}, {}], ids=["type", "status", "tenant"]
)
async def test_a_cursor_is_valid_only_for_the_list_that_created_it(bench: Bench, other: dict[str, Any]) -> None:
    await bench.make_job()
    await bench.make_job()
    cursor = (await bench.jobs.list(bench.tenant, limit=1)).next_cursor
    tenant = bench.tenant if other else (await bench.tenants.create("other")).id
    async with refuses(bench, InvalidCursor):
        await bench.jobs.list(tenant, cursor=cursor, **other)


# -- one job ------------------------------------------------------------------------------------------------


async def test_a_malformed_job_id_is_not_found(bench: Bench) -> None:
    await bench.make_job()
    jobs, tenant = bench.jobs, bench.tenant
    calls: dict[str, Callable[[], Awaitable[object]]] = {}
    for job_id in ("", "x", "\ud800", "\x00", "a" * 100_000, "' OR 1=1 --", "%"):
        for call in (jobs.get, jobs.attempts, jobs.cancel, jobs.retry):
            calls[f"{call.__name__} {job_id[:20]!r}"] = partial(call, tenant, job_id)
        calls[f"reschedule {job_id[:20]!r}"] = partial(jobs.reschedule, tenant, job_id, priority=1)
        calls[f"heartbeat {job_id[:20]!r}"] = partial(jobs.heartbeat, job_id, 1)
    assert len(calls) == 7 * 6
    await refuses_each(bench, JobNotFound, calls)


async def test_an_unknown_job_is_not_found(bench: Bench) -> None:
    for call in (bench.jobs.get, bench.jobs.attempts):
        async with refuses(bench, JobNotFound):
            await call(bench.tenant, new_id())


async def test_a_job_that_never_ran_has_no_attempts(bench: Bench) -> None:
    job = await bench.make_job()
    assert await bench.jobs.attempts(bench.tenant, job.id) == []


# -- counts -------------------------------------------------------------------------------------------------


async def test_counts_are_exact_for_every_status(bench: Bench) -> None:
    expected = {
        JobStatus.QUEUED: 3,
        JobStatus.RUNNING: 2,
        JobStatus.SUCCEEDED: 4,
        JobStatus.DEAD: 1,
        JobStatus.CANCELED: 2,
    }
    for status, count in expected.items():
        for _ in range(count):
            await bench.make_job_in(status, status.value)
    summary = await bench.jobs.summary(bench.tenant)
    assert summary.counts == expected | {JobStatus.BLOCKED: 0}
    assert summary.running == 2


async def test_the_summary_of_an_empty_tenant_is_zero(bench: Bench) -> None:
    summary = await bench.jobs.summary(bench.tenant)
    assert (set(summary.counts.values()), summary.running, summary.oldest_queued_seconds) == ({0}, 0, None)


async def test_oldest_queued_seconds_is_the_age_of_the_oldest_ready_job(bench: Bench) -> None:
    await bench.make_job("a", priority=5)
    bench.clock.advance(seconds=10)
    await bench.make_job("b", priority=1)
    await bench.make_job("c", delay=60)
    bench.clock.advance(seconds=5)
    assert (await bench.jobs.summary(bench.tenant)).oldest_queued_seconds == 15
    await bench.jobs.claim("worker", ["a"])
    assert (await bench.jobs.summary(bench.tenant)).oldest_queued_seconds == 5


async def test_a_scheduled_job_has_no_queued_age(bench: Bench) -> None:
    await bench.make_job(delay=60)
    bench.clock.advance(seconds=30)
    assert (await bench.jobs.summary(bench.tenant)).oldest_queued_seconds is None


async def test_concurrent_reads_see_whole_commands(bench: Bench) -> None:
    async def write() -> None:
        for _ in range(20):
            await bench.jobs.enqueue_many([new_job(bench.tenant, "noop") for _ in range(7)])

    writing = asyncio.create_task(write())
    seen = set()
    while not writing.done():
        seen.add((await bench.jobs.summary(bench.tenant)).counts[JobStatus.QUEUED] % 7)
        seen.add(len((await bench.jobs.list(bench.tenant, limit=1000)).items) % 7)
    await writing
    assert seen == {0}
