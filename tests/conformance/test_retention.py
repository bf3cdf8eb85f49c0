"""Retention: finished jobs go when they have been kept long enough, and nothing else ever does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ingot.identity import Limits, TenantNotFound
from ingot.jobs import (
    Claim,
    Collected,
    Definition,
    Done,
    Doomed,
    DuplicateJob,
    HistoryEntry,
    Job,
    JobNotFound,
    JobStatus,
    NewJob,
    Settle,
)
from ingot.jobs.orders import new_job
from ingot.jobs.retention import BATCH_JOBS, Retention
from ingot.kernel.clock import ManualClock
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from ingot.kernel.pages import InvalidCursor
from tests.conformance.following import end
from tests.conformance.pictures import picture, refuses
from tests.factories import LEASE_SECONDS, Bench, open_bench

HOUR = 3600.0
FINISHED = [JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED]


async def keep(bench: Bench, seconds: float | None, type: str = "noop", **options: Any) -> None:
    """Say how long jobs of a type are kept."""
    await bench.jobs.define(Definition(type=type, retention_seconds=seconds, **options))


async def finish(bench: Bench, count: int, type: str = "noop", **options: Any) -> list[str]:
    """Make so many jobs that have succeeded, one after the other."""
    return [(await bench.make_job_in(JobStatus.SUCCEEDED, type, **options)).id for _ in range(count)]


async def there(bench: Bench, tenant: str | None = None) -> list[str]:
    """The ids of all jobs there are, oldest first."""
    return [job.id for job in (await bench.jobs.list(tenant or bench.tenant, limit=1000)).items][::-1]


async def collect_all(bench: Bench, limit: int = 1000) -> int:
    """Collect until there is nothing more; how many jobs were removed."""
    removed = 0
    for _ in range(1000):
        collected = await bench.jobs.collect(limit)
        assert collected.removed <= limit
        removed += collected.removed
        if not collected.more:
            return removed
    raise AssertionError("collecting has no end")


# -- how long -----------------------------------------------------------------------------------------------


async def test_finished_jobs_are_kept_for_ever_unless_somebody_says_otherwise(bench: Bench) -> None:
    made = [(await bench.make_job_in(status)).id for status in FINISHED]
    bench.clock.advance(days=30_000)
    assert await bench.jobs.collect() == Collected()
    assert await there(bench) == made


@pytest.mark.parametrize("status", FINISHED)
async def test_a_finished_job_goes_when_its_time_is_over_and_not_before(bench: Bench, status: JobStatus) -> None:
    await keep(bench, HOUR)
    job = await bench.make_job_in(status)
    bench.clock.advance(seconds=HOUR - 0.000001)
    assert await bench.jobs.collect() == Collected()
    assert await there(bench) == [job.id]
    bench.clock.advance(seconds=0.000001)
    assert await bench.jobs.collect() == Collected(removed=1)
    assert await there(bench) == []
    for look in (bench.jobs.get, bench.jobs.attempts, bench.jobs.cancel, bench.jobs.retry):
        with pytest.raises(JobNotFound):
            await look(bench.tenant, job.id)


async def test_the_time_counts_from_the_end_and_not_from_the_beginning(bench: Bench) -> None:
    await keep(bench, HOUR)
    claim = await bench.make_claim()
    bench.clock.advance(seconds=2 * HOUR)
    await bench.jobs.complete(claim)
    assert await bench.jobs.collect() == Collected()
    bench.clock.advance(seconds=HOUR)
    assert (await bench.jobs.collect()).removed == 1


async def test_nothing_is_kept_where_nothing_is_to_be_kept(bench: Bench) -> None:
    await keep(bench, 0)
    await finish(bench, 2)
    assert (await bench.jobs.collect()).removed == 2


async def test_each_type_is_kept_as_its_definition_says(bench: Bench) -> None:
    await keep(bench, HOUR, "short")
    await keep(bench, 3 * HOUR, "long")
    short, long, ever = [(await finish(bench, 2, type)) for type in ("short", "long", "ever")]
    bench.clock.advance(seconds=2 * HOUR)
    assert await collect_all(bench) == 2
    assert await there(bench) == [*long, *ever]
    bench.clock.advance(seconds=HOUR)
    assert await collect_all(bench) == 2
    assert await there(bench) == ever
    assert short


async def test_a_tenant_keeps_its_jobs_as_its_limits_say(bench: Bench) -> None:
    other = (await bench.tenants.create("other", limits=Limits(retention_seconds=HOUR))).id
    mine = await finish(bench, 1)
    await finish(bench, 1, tenant=other)
    await finish(bench, 1, "b", tenant=other)
    bench.clock.advance(seconds=HOUR)
    assert await collect_all(bench) == 2
    assert (await there(bench), await there(bench, other)) == (mine, [])


@pytest.mark.parametrize(("tenant", "definition"), [(HOUR, 10 * HOUR), (10 * HOUR, HOUR)])
async def test_the_definition_wins_over_the_tenant(bench: Bench, tenant: float, definition: float) -> None:
    await bench.tenants.change(bench.tenant, limits=Limits(retention_seconds=tenant))
    await keep(bench, definition, "said")
    said, unsaid = await finish(bench, 1, "said"), await finish(bench, 1, "unsaid")
    bench.clock.advance(seconds=5 * HOUR)
    assert await collect_all(bench) == 1
    assert await there(bench) == (said if definition > tenant else unsaid)


async def test_a_tenants_own_definition_wins_over_the_one_for_all(bench: Bench) -> None:
    other = (await bench.tenants.create("other")).id
    await keep(bench, HOUR)
    await bench.jobs.define(Definition(type="noop", tenant=bench.tenant))  # It says nothing, and so does the tenant.
    mine = await finish(bench, 1)
    await finish(bench, 1, tenant=other)
    bench.clock.advance(seconds=2 * HOUR)
    assert await collect_all(bench) == 1
    assert (await there(bench), await there(bench, other)) == (mine, [])


async def test_what_is_said_now_holds_for_what_finished_before(bench: Bench) -> None:
    made = await finish(bench, 3)
    bench.clock.advance(seconds=HOUR)
    await keep(bench, 2 * HOUR)
    assert await collect_all(bench) == 0
    await keep(bench, None)
    bench.clock.advance(seconds=5 * HOUR)
    assert await collect_all(bench) == 0
    assert await there(bench) == made
    await keep(bench, HOUR)
    assert await collect_all(bench) == 3


async def test_a_time_beyond_all_times_is_for_ever(bench: Bench) -> None:
    await bench.tenants.change(bench.tenant, limits=Limits(retention_seconds=2.0**53))
    await finish(bench, 1)
    bench.clock.advance(days=30_000)
    assert await collect_all(bench) == 0


# -- what is never touched ----------------------------------------------------------------------------------


async def test_what_is_not_finished_is_never_touched(bench: Bench) -> None:
    await keep(bench, 0)
    queued = await bench.make_job(priority=5)
    scheduled = await bench.make_job(delay=100 * HOUR)
    running = await bench.make_claim(priority=1)
    retrying = await bench.make_claim(priority=1)
    await bench.jobs.fail(retrying, "not yet")
    snoozed = await bench.make_claim(priority=1)
    await bench.jobs.snooze(snoozed, HOUR)
    released = await bench.make_claim(priority=1)
    await bench.jobs.release(released)
    asked = await bench.make_claim("asked")
    await bench.jobs.cancel(bench.tenant, asked.job.id)
    before = await picture(bench)
    bench.clock.advance(seconds=HOUR / 2)
    assert await bench.jobs.collect() == Collected()
    assert await picture(bench) == before
    assert len(before[0]["jobs"]) == 7
    assert {queued.id, scheduled.id, running.job.id} <= {job["id"] for job in before[0]["jobs"]}


@pytest.mark.parametrize("status", FINISHED)
async def test_a_job_that_was_retried_lives_on_whole(bench: Bench, status: JobStatus) -> None:
    await keep(bench, HOUR)
    job = await bench.make_job_in(status, tags=["red"], idempotency_key="key", payload={"n": 1})
    bench.clock.advance(seconds=HOUR)
    retried = await bench.jobs.retry(bench.tenant, job.id)
    assert await collect_all(bench) == 0
    assert await bench.reload(job) == retried
    (claim,) = await bench.jobs.claim("worker", ["noop"])
    assert await collect_all(bench) == 0
    await bench.jobs.complete(claim)
    assert not (await bench.jobs.enqueue(bench.tenant, "noop", {"n": 1}, idempotency_key="key")).created
    bench.clock.advance(seconds=HOUR - 1)
    assert await collect_all(bench) == 0
    assert len(await bench.jobs.attempts(bench.tenant, job.id)) == (1 if status is JobStatus.CANCELED else 2)
    bench.clock.advance(seconds=1)
    assert await collect_all(bench) == 1


async def test_a_job_that_ended_twice_is_removed_once(bench: Bench) -> None:
    await keep(bench, HOUR)
    job = await bench.make_job_in(JobStatus.SUCCEEDED)
    await bench.jobs.retry(bench.tenant, job.id)
    (claim,) = await bench.jobs.claim("worker", ["noop"])
    await bench.jobs.complete(claim)
    bench.clock.advance(seconds=HOUR)
    assert [doomed.jobs for doomed in await bench.jobs.preview_retention(bench.tenant)] == [1]
    assert await collect_all(bench, limit=1) == 1
    assert (await bench.jobs.summary(bench.tenant)).counts[JobStatus.SUCCEEDED] == 0


async def test_a_job_that_ended_again_is_kept_from_then_on(bench: Bench) -> None:
    await keep(bench, HOUR)
    job = await bench.make_job_in(JobStatus.SUCCEEDED)
    bench.clock.advance(seconds=HOUR)
    await bench.jobs.retry(bench.tenant, job.id)
    await bench.jobs.cancel(bench.tenant, job.id)
    assert await bench.jobs.preview_retention(bench.tenant) == []
    assert await collect_all(bench) == 0
    bench.clock.advance(seconds=HOUR)
    assert await collect_all(bench) == 1


async def test_jobs_that_were_swept_or_canceled_while_they_ran_go_too(bench: Bench) -> None:
    await keep(bench, HOUR, crash_cap=1)
    await bench.make_claim()
    stopped = await bench.make_claim()
    await bench.jobs.cancel(bench.tenant, stopped.job.id)
    await bench.jobs.fail(stopped, "stopped")
    bench.clock.advance(seconds=LEASE_SECONDS)
    assert (await bench.jobs.tend()).swept == 1
    bench.clock.advance(seconds=HOUR)
    assert await collect_all(bench) == 2
    assert await there(bench) == []


# -- what goes with a job -----------------------------------------------------------------------------------


async def test_counts_are_exact_afterwards(bench: Bench) -> None:
    await keep(bench, HOUR, "goes")
    for status in [JobStatus.QUEUED, JobStatus.RUNNING, *FINISHED, *FINISHED]:
        await bench.make_job_in(status, f"stays-{status.value}")
    for status in [*FINISHED, JobStatus.DEAD]:
        await bench.make_job_in(status, "goes")
    bench.clock.advance(seconds=HOUR)
    assert await collect_all(bench) == 4
    counts = {JobStatus.BLOCKED: 0, JobStatus.QUEUED: 1, JobStatus.RUNNING: 1} | dict.fromkeys(FINISHED, 2)
    assert (await bench.jobs.summary(bench.tenant)).counts == counts


async def test_keys_and_ids_are_free_again(bench: Bench) -> None:
    await keep(bench, HOUR)
    order = new_job(bench.tenant, "noop", 1, idempotency_key="once", dedupe_key="alone", tags=["red"])
    (first,) = await bench.jobs.enqueue_many([order])
    (claim,) = await bench.jobs.claim("worker", ["noop"])
    await bench.jobs.complete(claim)
    bench.clock.advance(seconds=HOUR)
    assert not (await bench.jobs.enqueue(bench.tenant, "noop", 1, idempotency_key="once")).created
    assert await collect_all(bench) == 1
    second = await bench.jobs.enqueue(bench.tenant, "noop", 2, idempotency_key="once", dedupe_key="alone")
    assert second.created
    assert second.job.id != first.job.id
    with pytest.raises(DuplicateJob):
        await bench.make_job(dedupe_key="alone")
    (resent,) = await bench.jobs.enqueue_many([NewJob(id=first.job.id, tenant=bench.tenant, type="noop")])
    again = await bench.reload(resent.job)
    assert (resent.created, again.id, again.attempts, again.tags) == (True, first.job.id, 0, ())
    assert await bench.jobs.attempts(bench.tenant, again.id) == []


async def test_a_key_of_a_job_that_stays_is_not_freed(bench: Bench) -> None:
    await keep(bench, HOUR, "goes")
    for type in ("goes", "stays"):
        await bench.make_job_in(JobStatus.SUCCEEDED, type, payload=1, idempotency_key="same")
    bench.clock.advance(seconds=HOUR)
    assert await collect_all(bench) == 1
    assert not (await bench.jobs.enqueue(bench.tenant, "stays", 1, idempotency_key="same")).created


async def test_what_a_job_waited_for_stays_to_be_seen(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        await keep(bench, HOUR, "parent")
        parent = new_job(bench.tenant, "parent")
        child = new_job(bench.tenant, "child", after=[parent.id])
        _, made = await bench.jobs.enqueue_many([child, parent])
        await end(bench, made.job)
        clock.advance(seconds=HOUR)
        assert await collect_all(bench) == 1
        assert (await bench.jobs.get(bench.tenant, child.id)).after == (parent.id,)
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        await bench.make_job("another")
        assert (await bench.jobs.get(bench.tenant, child.id)).after == (parent.id,)


async def test_events_stay_and_none_is_written(bench: Bench) -> None:
    await keep(bench, HOUR)
    await finish(bench, 2)
    names = await bench.event_names()
    bench.clock.advance(seconds=HOUR)
    assert await collect_all(bench) == 2
    assert await bench.event_names() == names


# -- bounded ------------------------------------------------------------------------------------------------


async def test_a_collection_takes_no_more_than_it_was_told_the_longest_finished_first(bench: Bench) -> None:
    await keep(bench, HOUR)
    made = []
    for _ in range(10):
        made += await finish(bench, 1)
        bench.clock.advance(seconds=1)
    bench.clock.advance(seconds=HOUR)
    found = []
    for left in (7, 4, 1, 0):
        found.append(await bench.jobs.collect(3))
        assert await there(bench) == made[10 - left :]
    assert found == [Collected(removed=n, more=n == 3) for n in (3, 3, 3, 1)]
    assert await bench.jobs.collect(3) == Collected()


async def test_jobs_that_ended_together_are_taken_in_parts(bench: Bench) -> None:
    await keep(bench, HOUR, "a")
    await keep(bench, HOUR, "b", keep_history=True)
    await bench.jobs.enqueue_many([new_job(bench.tenant, "ab"[n % 2]) for n in range(40)])
    claims = await bench.jobs.claim("worker", ["a", "b"], limit=40)
    await bench.jobs.settle_many([_done(claim) for claim in claims])
    bench.clock.advance(seconds=HOUR)
    found = [await bench.jobs.collect(7) for _ in range(6)]
    assert [(each.removed, each.more) for each in found] == [(7, True)] * 5 + [(5, False)]
    assert sum(each.kept for each in found) == 20
    assert len((await bench.jobs.history(bench.tenant)).items) == 20


def _done(claim: Claim) -> Settle:
    return Settle(job_id=claim.job.id, fence=claim.fence, outcome=Done())


async def test_a_round_that_ends_exactly_has_no_more(bench: Bench) -> None:
    await keep(bench, HOUR)
    await finish(bench, 4)
    bench.clock.advance(seconds=HOUR)
    assert await bench.jobs.collect(4) == Collected(removed=4)


async def test_types_that_are_kept_do_not_stand_in_the_way(bench: Bench) -> None:
    await keep(bench, HOUR, "m")
    await finish(bench, 3, "a")
    await finish(bench, 2, "m")
    await finish(bench, 3, "z")
    bench.clock.advance(seconds=HOUR)
    assert await bench.jobs.collect(2) == Collected(removed=2)


async def test_the_loop_goes_on_while_there_is_more(bench: Bench) -> None:
    await keep(bench, HOUR)
    claims = []
    await bench.jobs.enqueue_many([new_job(bench.tenant, "noop") for _ in range(BATCH_JOBS + 1)])
    while found := await bench.jobs.claim("worker", ["noop"], limit=1000):
        claims += found
    await bench.jobs.settle_many([_done(claim) for claim in claims])
    bench.clock.advance(seconds=HOUR)
    loop = Retention(bench.store)
    assert await loop.run_once() == Collected(removed=BATCH_JOBS, more=True)
    assert await loop.run_once() == Collected(removed=1)


@pytest.mark.parametrize("limit", [0, -1, 10_001, 1.5, True, "10", None])
async def test_a_limit_has_bounds(bench: Bench, limit: Any) -> None:
    await keep(bench, 0)
    await finish(bench, 1)
    async with refuses(bench, InvalidInput):
        await bench.jobs.collect(limit)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 10**12, True, "1", [1]])
async def test_a_time_to_keep_is_a_number_of_seconds(bench: Bench, seconds: Any) -> None:
    async with refuses(bench, InvalidInput):
        await bench.jobs.define(Definition(type="noop", retention_seconds=seconds))


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), True, "1"])
async def test_so_it_is_in_limits(bench: Bench, seconds: Any) -> None:
    async with refuses(bench, InvalidInput):
        await bench.tenants.change(bench.tenant, limits=Limits(retention_seconds=seconds))


@pytest.mark.parametrize("keeps", [1, "yes", None])
async def test_keeping_history_is_yes_or_no(bench: Bench, keeps: Any) -> None:
    async with refuses(bench, InvalidInput):
        await bench.jobs.define(Definition(type="noop", keep_history=keeps))


# -- preview ------------------------------------------------------------------------------------------------


async def test_a_preview_tells_what_collecting_then_removes(bench: Bench) -> None:
    other = (await bench.tenants.create("other", limits=Limits(retention_seconds=0))).id
    await keep(bench, HOUR, "a")
    await keep(bench, 2 * HOUR, "b")
    oldest = bench.clock.now()
    for status in FINISHED:
        await bench.make_job_in(status, "a")
        await bench.make_job_in(status, "b")
    back = await bench.make_job_in(JobStatus.DEAD, "a")
    bench.clock.advance(seconds=60)
    await finish(bench, 2, "a")
    await finish(bench, 2, "ever")
    await finish(bench, 5, "a", tenant=other)
    bench.clock.advance(seconds=HOUR - 50)
    late = await finish(bench, 1, "a")
    await bench.jobs.retry(bench.tenant, back.id)
    before = await picture(bench)
    assert await bench.jobs.preview_retention(bench.tenant) == [Doomed(type="a", jobs=3, oldest_finished_at=oldest)]
    assert await picture(bench) == before
    bench.clock.advance(seconds=HOUR - 10)
    first, second = await bench.jobs.preview_retention(bench.tenant)
    assert (first, second.jobs, second.type) == (Doomed(type="a", jobs=5, oldest_finished_at=oldest), 3, "b")
    await collect_all(bench)
    assert await bench.jobs.preview_retention(bench.tenant) == []
    counts = (await bench.jobs.summary(bench.tenant)).counts
    assert sum(counts.values()) == len(late) + 2 + 1  # What finished late, what is kept, and what was retried.


async def test_a_preview_of_a_tenant_that_keeps_all_is_empty(bench: Bench) -> None:
    await finish(bench, 1)
    assert await bench.jobs.preview_retention(bench.tenant) == []


async def test_a_preview_counts_to_a_bound_and_says_so(bench: Bench) -> None:
    await keep(bench, 0)
    jobs = 10_001
    orders = [new_job(bench.tenant, "noop") for _ in range(jobs)]
    await bench.jobs.enqueue_many(orders[:1])
    await bench.jobs.enqueue_many(orders[1:])
    claims = []
    while found := await bench.jobs.claim("worker", ["noop"], limit=1000):
        claims += found
    for start in range(0, jobs, 1000):
        await bench.jobs.settle_many([_done(claim) for claim in claims[start : start + 1000]])
    (doomed,) = await bench.jobs.preview_retention(bench.tenant)
    assert (doomed.jobs, doomed.more) == (10_000, True)
    assert (await bench.jobs.collect(1)).removed == 1
    (doomed,) = await bench.jobs.preview_retention(bench.tenant)
    assert (doomed.jobs, doomed.more) == (10_000, False)


@pytest.mark.parametrize("tenant", [7, None])
async def test_a_tenant_is_a_text(bench: Bench, tenant: Any) -> None:
    for call in (bench.jobs.preview_retention, bench.jobs.history):
        async with refuses(bench, InvalidInput):
            await call(tenant)


async def test_an_unknown_tenant_has_no_preview_and_no_history(bench: Bench) -> None:
    for call in (bench.jobs.preview_retention, bench.jobs.history):
        async with refuses(bench, TenantNotFound):
            await call(new_id())


# -- history ------------------------------------------------------------------------------------------------


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


async def test_an_entry_stays_where_the_definition_says_so(bench: Bench) -> None:
    await keep(bench, HOUR, keep_history=True)
    await keep(bench, HOUR, "forgotten")
    made = []
    for status in FINISHED:
        bench.clock.advance(seconds=1)
        made.append(await bench.make_job_in(status))
    await finish(bench, 2, "forgotten")
    assert (await bench.jobs.history(bench.tenant)).items == []
    bench.clock.advance(seconds=HOUR)
    assert await bench.jobs.collect() == Collected(removed=5, kept=3)
    page = await bench.jobs.history(bench.tenant)
    assert (page.items, page.next_cursor) == ([entry_of(job) for job in reversed(made)], None)


async def test_an_error_is_cut_in_the_history(bench: Bench) -> None:
    await keep(bench, 0, keep_history=True)
    claim = await bench.make_claim()
    await bench.jobs.fail(claim, "ä" * 300, retry=False)
    job = await bench.reload(claim)
    await bench.jobs.collect()
    assert (await bench.jobs.history(bench.tenant)).items == [entry_of(job, last_error="ä" * 200)]


@pytest.mark.parametrize("limit", [1, 3, 4, 5, 1000])
async def test_pages_of_the_history_hold_every_entry_once(bench: Bench, limit: int) -> None:
    other = (await bench.tenants.create("other")).id
    for type in ("a", "b"):
        await keep(bench, 0, type, keep_history=True)
    made = []
    for place in range(12):
        made.append(await bench.make_job_in(JobStatus.SUCCEEDED, "ab"[place % 2]))
        if place % 3 == 0:  # Some finished at the same instant.
            bench.clock.advance(seconds=1)
    await finish(bench, 3, "a", tenant=other)
    assert await collect_all(bench) == 15
    entries = sorted((entry_of(job) for job in made), key=lambda e: (e.finished_at, e.id), reverse=True)
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


async def test_a_cursor_fits_only_the_history_that_made_it(bench: Bench) -> None:
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
