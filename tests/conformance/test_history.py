"""The history: entries about removed jobs."""

from __future__ import annotations

from typing import Any

import pytest

from ingot.jobs import HistoryEntry, Job, JobCollectionResult, JobStatus
from ingot.kernel.pages import InvalidCursor
from tests.conformance.retention import FINISHED, HOUR, collect_all, finish, keep
from tests.conformance.snapshots import refuses
from tests.factories import Bench


def entry_of(job: Job, **values: Any) -> HistoryEntry:
    assert job.finished_at is not None
    return HistoryEntry(
        id=job.id,
        tenant=job.tenant,
        type=job.type,
        status=job.status,
        attempts=job.attempts,
        created_at=job.created_at,
        finished_at=job.finished_at,
        **{"last_error": job.last_error, **values},
    )


async def test_an_entry_is_kept_if_the_definition_keeps_history(bench: Bench) -> None:
    await keep(bench, HOUR, keep_history=True)
    await keep(bench, HOUR, "forgotten")
    jobs = []
    for status in FINISHED:
        bench.clock.advance(seconds=1)
        jobs.append(await bench.make_job_in(status))
    await finish(bench, 2, "forgotten")
    assert (await bench.jobs.history(bench.tenant)).items == []
    bench.clock.advance(seconds=HOUR)
    assert await bench.jobs.collect() == JobCollectionResult(removed=5, kept=3)
    page = await bench.jobs.history(bench.tenant)
    assert (page.items, page.next_cursor) == ([entry_of(job) for job in reversed(jobs)], None)


async def test_an_error_is_truncated_to_200_characters_in_the_history(bench: Bench) -> None:
    await keep(bench, 0, keep_history=True)
    claim = await bench.make_claim()
    await bench.jobs.fail(claim, "ä" * 300, retry=False)
    job = await bench.reload(claim)
    await bench.jobs.collect()
    assert (await bench.jobs.history(bench.tenant)).items == [entry_of(job, last_error="ä" * 200)]


@pytest.mark.parametrize("limit", [1, 3, 4, 5, 1000])
async def test_pages_of_the_history_contain_every_entry_once(bench: Bench, limit: int) -> None:
    other = (await bench.tenants.create("other")).id
    for type in ("a", "b"):
        await keep(bench, 0, type, keep_history=True)
    jobs = []
    for index in range(12):
        jobs.append(await bench.make_job_in(JobStatus.SUCCEEDED, "ab"[index % 2]))
        if index % 3 == 0:  # Several jobs finish at the same instant.
            bench.clock.advance(seconds=1)
    await finish(bench, 3, "a", tenant=other)
    assert await collect_all(bench) == 15
    entries = sorted((entry_of(job) for job in jobs), key=lambda e: (e.finished_at, e.id), reverse=True)
    for wanted in (None, "a", "b", "c"):
        found: list[HistoryEntry] = []
        cursor: str | None = None
        for _ in range(13):
            page = await bench.jobs.history(bench.tenant, type=wanted, cursor=cursor, limit=limit)
            assert len(page.items) <= limit
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                break
        assert found == [entry for entry in entries if wanted in (None, entry.type)]


async def test_a_cursor_is_valid_only_for_the_list_that_created_it(bench: Bench) -> None:
    await keep(bench, 0, keep_history=True)
    await finish(bench, 2)
    await bench.jobs.collect()
    cursor = (await bench.jobs.history(bench.tenant, limit=1)).next_cursor
    async with refuses(bench, InvalidCursor):
        await bench.jobs.history(bench.tenant, type="noop", cursor=cursor)
    async with refuses(bench, InvalidCursor):
        await bench.jobs.list(bench.tenant, cursor=cursor)
    async with refuses(bench, InvalidCursor):
        await bench.jobs.history(bench.tenant, cursor="nonsense")
