"""Claims that wait: woken when work arrives, by signals and never by polling."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ingot.identity import Tenants
from ingot.jobs import AttemptOutcome, Claim, Job, Jobs, JobStatus
from ingot.jobs.job_options import new_job
from ingot.jobs.maintenance import JobMaintenance
from ingot.kernel.clock import SystemClock
from ingot.kernel.errors import StoreBusy
from tests.conformance.counting_store import WatchedStore
from tests.factories import LEASE_SECONDS, Bench, open_store
from tests.waiting import eventually

Waiting = asyncio.Task[list[Claim]]
TYPES = ["noop"]


def _wait(jobs: Jobs, worker: str = "worker", *, seconds: float = 60, tenant: str | None = None) -> Waiting:
    """A claim that waits longer than any test runs, unless told otherwise."""
    return asyncio.create_task(jobs.claim(worker, TYPES, wait_seconds=seconds, tenant=tenant))


async def _ids(waiting: Waiting) -> list[str]:
    async with asyncio.timeout(30):
        return [claim.job.id for claim in await waiting]


# -- what wakes a claim -------------------------------------------------------------------------------------


async def test_work_that_is_there_is_claimed_without_waiting(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    job = await bench.make_job()
    assert await _ids(_wait(store.jobs())) == [job.id]
    assert store.looks == 1


async def test_a_waiting_claim_is_woken_by_an_enqueue_and_looks_once_more(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    waiting = _wait(store.jobs())
    await store.found_nothing(1)
    job = await bench.make_job()
    assert await _ids(waiting) == [job.id]
    assert store.looks == 2


@pytest.mark.parametrize("how", ["release", "retry", "reschedule", "promote", "sweep"])
async def test_a_waiting_claim_is_woken_by_whatever_makes_work_ready(bench: Bench, how: str) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    claim = await bench.make_claim()
    later = await bench.make_job(delay=LEASE_SECONDS / 2)
    if how == "retry":
        await bench.jobs.fail(claim, "no", retry=False)
    waiting = _wait(jobs)
    await store.found_nothing(1)
    expected = claim.job.id
    if how == "release":
        await bench.jobs.release(claim)
    elif how == "retry":
        await bench.jobs.retry(bench.tenant, claim.job.id)
    elif how == "reschedule":
        expected = later.id
        await bench.jobs.reschedule(bench.tenant, later.id, run_at=datetime(2020, 1, 1, tzinfo=UTC))
    elif how == "promote":
        expected = later.id
        bench.clock.advance(seconds=LEASE_SECONDS / 2)
        await bench.jobs.maintain()
    else:
        await bench.jobs.cancel(bench.tenant, later.id)
        bench.clock.advance(seconds=LEASE_SECONDS)
        await bench.jobs.maintain()
        bench.clock.advance(seconds=5)
        await bench.jobs.maintain()
    assert await _ids(waiting) == [expected]
    assert store.looks == 2


async def test_work_of_another_type_or_tenant_wakes_nobody(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    store = WatchedStore(bench.store)
    waiting = _wait(store.jobs(), tenant=other.id)
    await store.found_nothing(1)
    await bench.make_job("another", tenant=other.id)
    await bench.make_job()
    assert store.looks == 1
    job = await bench.make_job(tenant=other.id)
    assert await _ids(waiting) == [job.id]
    assert store.looks == 2


async def test_work_that_is_not_due_wakes_nobody(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    waiting = _wait(store.jobs(), seconds=0.1)
    await store.found_nothing(1)
    await bench.make_job(delay=60)
    assert await _ids(waiting) == []
    assert store.looks == 2


async def test_a_claim_that_waited_in_vain_is_empty_after_the_whole_wait(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    loop = asyncio.get_running_loop()
    start = loop.time()
    assert await _ids(_wait(store.jobs(), seconds=0.2)) == []
    assert loop.time() - start >= 0.2
    assert store.looks == 2


async def test_one_job_wakes_one_of_many(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    waiting = [_wait(jobs) for _ in range(10)]
    await store.found_nothing(10)
    await bench.make_job()
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=30)
    assert (sum(task.done() for task in waiting), store.looks) == (1, 11)
    await _end(waiting)


async def test_the_longest_waiting_claim_is_served_first(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    waiting = []
    for n in range(4):
        waiting.append(_wait(jobs, f"w{n}"))
        await store.found_nothing(n + 1)
    for n in range(4):
        job = await bench.make_job()
        assert await _ids(waiting[n]) == [job.id]


async def test_a_claim_woken_in_vain_keeps_its_place_in_the_line(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    first = _wait(jobs, "first")
    await store.found_nothing(1)
    second = _wait(jobs, "second")
    await store.found_nothing(2)
    store.tell_ready(bench.tenant, TYPES[0])
    await store.found_nothing(3)
    job = await bench.make_job()
    assert await _ids(first) == [job.id]
    await _end([second])


async def test_jobs_that_come_together_wake_as_many_claims(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    waiting = [_wait(jobs) for _ in range(5)]
    await store.found_nothing(5)
    answers = await bench.jobs.enqueue_many([new_job(bench.tenant, "noop") for _ in range(5)])
    claimed = [id for task in waiting for id in await _ids(task)]
    assert sorted(claimed) == [answer.job.id for answer in answers]


async def test_waiting_claims_of_two_services_on_one_store_both_hear(bench: Bench) -> None:
    stores = [WatchedStore(bench.store), WatchedStore(bench.store)]
    waiting = [_wait(store.jobs()) for store in stores]
    for store in stores:
        await store.found_nothing(1)
    answers = await bench.jobs.enqueue_many([new_job(bench.tenant, "noop") for _ in range(2)])
    claimed = [id for task in waiting for id in await _ids(task)]
    assert sorted(claimed) == [answer.job.id for answer in answers]


# -- no wake-up is lost -------------------------------------------------------------------------------------


async def test_a_claim_canceled_while_it_waits_takes_nothing(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    gone, staying = _wait(jobs, "gone"), _wait(jobs, "staying")
    await store.found_nothing(2)
    await _end([gone])
    job = await bench.make_job()
    assert await _ids(staying) == [job.id]
    assert (await bench.reload(job)).attempts == 1


async def test_a_claim_canceled_as_it_is_woken_passes_the_news_on(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    first = _wait(jobs, "first")
    await store.found_nothing(1)
    second = _wait(jobs, "second")
    await store.found_nothing(2)

    def cancel_first(*_: object) -> int:
        first.cancel()
        return 0

    bench.store.on_ready(cancel_first)
    bench.store.on_upcoming_jobs(cancel_first)
    job = await bench.make_job()
    assert await _ids(second) == [job.id]
    await asyncio.wait([first], timeout=30)
    assert first.cancelled()


async def test_a_claim_that_came_back_with_older_work_passes_the_news_on(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    older = await bench.make_job()
    store.held["first"] = asyncio.Event()
    first = _wait(jobs, "first")  # It has the older job, and does not hear of it yet.
    await store.answered(1)
    second = _wait(jobs, "second")
    await store.found_nothing(1)
    newer = await bench.make_job()
    store.held["first"].set()
    assert [await _ids(first), await _ids(second)] == [[older.id], [newer.id]]


async def test_a_claim_whose_wait_ends_as_work_arrives_passes_the_news_on(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    first = _wait(jobs, "first", seconds=0.05)
    await store.found_nothing(1)
    store.held["first"] = asyncio.Event()
    second = _wait(jobs, "second")
    await store.found_nothing(3)  # The first looked for the last time and does not know the answer yet.
    job = await bench.make_job()
    store.held["first"].set()
    assert [await _ids(first), await _ids(second)] == [[], [job.id]]


async def test_a_claim_that_fails_when_woken_passes_the_news_on(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    first = _wait(jobs, "first")
    await store.found_nothing(1)
    second = _wait(jobs, "second")
    await store.found_nothing(2)
    store.failing["first"] = StoreBusy()
    job = await bench.make_job()
    assert await _ids(second) == [job.id]
    with pytest.raises(StoreBusy):
        await first


@pytest.mark.parametrize("seed", range(5))
async def test_claims_that_come_and_go_leave_no_job_behind(bench: Bench, seed: int) -> None:
    chance = random.Random(seed)
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    done: list[str] = []
    all_done = asyncio.Event()

    async def work(n: int) -> None:
        while True:
            for claim in await jobs.claim(f"w{n}", TYPES, wait_seconds=60, limit=chance.choice([1, 1, 3])):
                await jobs.complete(claim)
                done.append(claim.job.id)
            if len(done) >= 60:
                all_done.set()

    async def come_and_go() -> None:
        for _ in range(30):
            task = _wait(jobs, "visitor")
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
            await _end([task])
            for claim in [] if task.cancelled() else task.result():
                await jobs.release(claim)

    tasks: list[asyncio.Task[None]] = [asyncio.create_task(work(n)) for n in range(3)]
    tasks += [asyncio.create_task(come_and_go()) for _ in range(4)]
    made = []
    for _ in range(60):
        made.append((await bench.make_job()).id)
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await all_done.wait()
    await _end(tasks)
    assert sorted(done) == sorted(made)
    stored = (await bench.jobs.list(bench.tenant, limit=1000)).items
    assert {(job.status, job.failures, job.crashes) for job in stored} == {(JobStatus.SUCCEEDED, 0, 0)}


# -- giving back --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait_seconds", [0, 60])
async def test_a_claim_canceled_under_way_gives_its_jobs_back_uncounted(bench: Bench, wait_seconds: float) -> None:
    jobs = [await bench.make_job(max_attempts=1) for _ in range(3)]
    claiming = asyncio.create_task(bench.jobs.claim("gone", TYPES, limit=3, wait_seconds=wait_seconds))
    await asyncio.sleep(0)  # Its command is on the way now.
    await _end([claiming])
    await eventually(lambda: _were_all_taken(bench, jobs))  # Another claim may overtake it on PostgreSQL.
    taken: list[Claim] = []
    async with asyncio.timeout(30):
        while len(taken) < 3:
            taken += await bench.jobs.claim("staying", TYPES, limit=3, wait_seconds=60)
    assert sorted(claim.job.id for claim in taken) == [job.id for job in jobs]
    assert {(c.job.attempts, c.job.failures, c.job.crashes) for c in taken} == {(2, 0, 0)}
    outcomes = [(await bench.jobs.attempts(bench.tenant, job.id))[0].outcome for job in jobs]
    assert outcomes == [AttemptOutcome.RELEASED] * 3


async def _were_all_taken(bench: Bench, jobs: list[Job]) -> bool:
    return all([(await bench.reload(job)).attempts == 1 for job in jobs])


async def test_closing_waits_until_all_has_been_given_back(bench: Bench) -> None:
    job = await bench.make_job()
    claiming = asyncio.create_task(bench.jobs.claim("gone", TYPES))
    await asyncio.sleep(0)  # Its command is on the way now.
    await _end([claiming])
    await bench.jobs.close()
    stands = await bench.reload(job)
    assert (stands.status, stands.attempts, stands.failures, stands.crashes) == (JobStatus.QUEUED, 1, 0, 0)


async def test_a_claim_canceled_before_it_is_asked_takes_nothing(bench: Bench) -> None:
    job = await bench.make_job()
    claiming = asyncio.create_task(bench.jobs.claim("gone", TYPES))
    await _end([claiming])
    assert (await bench.reload(job)).attempts == 0


# -- the loop that tends ------------------------------------------------------------------------------------


@asynccontextmanager
async def _in_real_time(engine: str, folder: Path) -> AsyncIterator[tuple[WatchedStore, JobMaintenance, str]]:
    store = await open_store(engine, folder, SystemClock())
    maintenance = JobMaintenance(store)
    try:
        tenant = await Tenants(store).ensure_default()
        maintenance.start()
        yield WatchedStore(store), maintenance, tenant.id
    finally:
        await maintenance.stop()
        await store.close()


async def test_the_loop_wakes_a_waiting_claim_when_work_becomes_due(engine: str, tmp_path: Path) -> None:
    async with _in_real_time(engine, tmp_path / "data") as (store, _, tenant):
        jobs = store.jobs()
        await jobs.enqueue(tenant, "noop", "in an hour", delay=3600)
        waiting = _wait(jobs)
        await store.found_nothing(1)
        soon = await jobs.enqueue(tenant, "noop", "soon", delay=0.2)
        assert await _ids(waiting) == [soon.job.id]
        assert store.looks == 2


async def test_the_loop_stops_even_as_its_agenda_moves(engine: str, tmp_path: Path) -> None:
    async with _in_real_time(engine, tmp_path / "data") as (store, maintenance, tenant):
        stopping: list[asyncio.Task[None]] = []
        store.on_maintenance_rescheduled(lambda: stopping.append(asyncio.create_task(maintenance.stop())))
        await store.jobs().enqueue(tenant, "noop", delay=3600)
        (stop,) = stopping
        async with asyncio.timeout(30):
            await stop


async def test_one_round_of_the_loop_does_what_is_due(bench: Bench) -> None:
    await bench.make_job(delay=10)
    await bench.make_claim("held")
    bench.clock.advance(seconds=LEASE_SECONDS)
    tended = await JobMaintenance(bench.store).run_once()
    assert (tended.promoted, tended.swept) == (1, 1)


async def _end(tasks: list[asyncio.Task[None]] | list[Waiting]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


# -- news that one claim does not use -----------------------------------------------------------------------


async def test_a_claim_that_takes_other_work_leaves_its_news_to_those_who_wait_for_it(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    both = asyncio.create_task(jobs.claim("both", ["x", "y"], wait_seconds=60))
    await store.found_nothing(1)
    one = asyncio.create_task(jobs.claim("one", ["x"], wait_seconds=60))
    await store.found_nothing(2)
    slow, fast = await jobs.enqueue_many(
        [new_job(bench.tenant, "x", priority=5), new_job(bench.tenant, "y", priority=1)]
    )
    assert await _ids(both) == [fast.job.id]
    assert await _ids(one) == [slow.job.id]


async def test_closing_ends_waiting_claims_with_nothing(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    waiting = _wait(jobs)
    await store.found_nothing(1)
    await jobs.close()
    assert await _ids(waiting) == []
