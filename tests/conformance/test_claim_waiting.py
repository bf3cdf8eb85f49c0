"""Waiting claims: woken by notifications when jobs become ready, and never by polling."""

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

ClaimTask = asyncio.Task[list[Claim]]
TYPES = ["noop"]


def _start_claim(jobs: Jobs, worker: str = "worker", *, seconds: float = 60, tenant: str | None = None) -> ClaimTask:
    """Start a claim that waits, by default longer than any test runs."""
    return asyncio.create_task(jobs.claim(worker, TYPES, wait_seconds=seconds, tenant=tenant))


async def _claimed_ids(waiting: ClaimTask) -> list[str]:
    async with asyncio.timeout(30):
        return [claim.job.id for claim in await waiting]


# -- wake-ups -----------------------------------------------------------------------------------------------


async def test_a_ready_job_is_claimed_without_waiting(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    job = await bench.make_job()
    assert await _claimed_ids(_start_claim(store.jobs())) == [job.id]
    assert store.looks == 1


async def test_a_waiting_claim_is_woken_by_an_enqueue_and_tries_once_more(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    waiting = _start_claim(store.jobs())
    await store.found_nothing(1)
    job = await bench.make_job()
    assert await _claimed_ids(waiting) == [job.id]
    assert store.looks == 2


@pytest.mark.parametrize("how", ["release", "retry", "reschedule", "promote", "sweep"])
async def test_a_waiting_claim_is_woken_by_every_command_that_makes_a_job_ready(bench: Bench, how: str) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    claim = await bench.make_claim()
    later = await bench.make_job(delay=LEASE_SECONDS / 2)
    if how == "retry":
        await bench.jobs.fail(claim, "no", retry=False)
    waiting = _start_claim(jobs)
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
    assert await _claimed_ids(waiting) == [expected]
    assert store.looks == 2


async def test_a_job_of_another_type_or_tenant_wakes_no_claim(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    store = WatchedStore(bench.store)
    waiting = _start_claim(store.jobs(), tenant=other.id)
    await store.found_nothing(1)
    await bench.make_job("another", tenant=other.id)
    await bench.make_job()
    assert store.looks == 1
    job = await bench.make_job(tenant=other.id)
    assert await _claimed_ids(waiting) == [job.id]
    assert store.looks == 2


async def test_a_scheduled_job_wakes_no_claim(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    waiting = _start_claim(store.jobs(), seconds=0.1)
    await store.found_nothing(1)
    await bench.make_job(delay=60)
    assert await _claimed_ids(waiting) == []
    assert store.looks == 2


async def test_a_claim_without_jobs_returns_empty_after_the_whole_wait(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    loop = asyncio.get_running_loop()
    start = loop.time()
    assert await _claimed_ids(_start_claim(store.jobs(), seconds=0.2)) == []
    assert loop.time() - start >= 0.2
    assert store.looks == 2


async def test_one_job_wakes_one_of_many_claims(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    waiting = [_start_claim(jobs) for _ in range(10)]
    await store.found_nothing(10)
    await bench.make_job()
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=30)
    assert (sum(task.done() for task in waiting), store.looks) == (1, 11)
    await _cancel_tasks(waiting)


async def test_the_longest_waiting_claim_is_served_first(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    waiting = []
    for n in range(4):
        waiting.append(_start_claim(jobs, f"w{n}"))
        await store.found_nothing(n + 1)
    for n in range(4):
        job = await bench.make_job()
        assert await _claimed_ids(waiting[n]) == [job.id]


async def test_a_claim_woken_without_a_job_keeps_its_position_in_the_queue(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    first = _start_claim(jobs, "first")
    await store.found_nothing(1)
    second = _start_claim(jobs, "second")
    await store.found_nothing(2)
    store.tell_ready(bench.tenant, TYPES[0])
    await store.found_nothing(3)
    job = await bench.make_job()
    assert await _claimed_ids(first) == [job.id]
    await _cancel_tasks([second])


async def test_jobs_enqueued_together_wake_as_many_claims(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    waiting = [_start_claim(jobs) for _ in range(5)]
    await store.found_nothing(5)
    answers = await bench.jobs.enqueue_many([new_job(bench.tenant, "noop") for _ in range(5)])
    claimed = [id for task in waiting for id in await _claimed_ids(task)]
    assert sorted(claimed) == [answer.job.id for answer in answers]


async def test_claims_of_two_services_on_one_store_are_both_woken(bench: Bench) -> None:
    stores = [WatchedStore(bench.store), WatchedStore(bench.store)]
    waiting = [_start_claim(store.jobs()) for store in stores]
    for store in stores:
        await store.found_nothing(1)
    answers = await bench.jobs.enqueue_many([new_job(bench.tenant, "noop") for _ in range(2)])
    claimed = [id for task in waiting for id in await _claimed_ids(task)]
    assert sorted(claimed) == [answer.job.id for answer in answers]


# -- lost wake-ups ------------------------------------------------------------------------------------------


async def test_a_claim_canceled_while_waiting_takes_no_job(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    canceled, remaining = _start_claim(jobs, "canceled"), _start_claim(jobs, "remaining")
    await store.found_nothing(2)
    await _cancel_tasks([canceled])
    job = await bench.make_job()
    assert await _claimed_ids(remaining) == [job.id]
    assert (await bench.reload(job)).attempts == 1


async def test_a_claim_canceled_when_woken_passes_the_wake_up_on(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    first = _start_claim(jobs, "first")
    await store.found_nothing(1)
    second = _start_claim(jobs, "second")
    await store.found_nothing(2)

    def cancel_first(*_: object) -> int:
        first.cancel()
        return 0

    bench.store.on_ready(cancel_first)
    bench.store.on_upcoming_jobs(cancel_first)
    job = await bench.make_job()
    assert await _claimed_ids(second) == [job.id]
    await asyncio.wait([first], timeout=30)
    assert first.cancelled()


async def test_a_claim_that_got_an_older_job_passes_the_wake_up_on(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    older = await bench.make_job()
    store.held["first"] = asyncio.Event()
    first = _start_claim(jobs, "first")  # The claim has the older job, but its response is held back.
    await store.answered(1)
    second = _start_claim(jobs, "second")
    await store.found_nothing(1)
    newer = await bench.make_job()
    store.held["first"].set()
    assert [await _claimed_ids(first), await _claimed_ids(second)] == [[older.id], [newer.id]]


async def test_a_claim_that_times_out_as_a_job_arrives_passes_the_wake_up_on(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    first = _start_claim(jobs, "first", seconds=0.05)
    await store.found_nothing(1)
    store.held["first"] = asyncio.Event()
    second = _start_claim(jobs, "second")
    await store.found_nothing(3)  # The response to the last attempt of the first claim is held back.
    job = await bench.make_job()
    store.held["first"].set()
    assert [await _claimed_ids(first), await _claimed_ids(second)] == [[], [job.id]]


async def test_a_claim_that_fails_when_woken_passes_the_wake_up_on(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    first = _start_claim(jobs, "first")
    await store.found_nothing(1)
    second = _start_claim(jobs, "second")
    await store.found_nothing(2)
    store.failing["first"] = StoreBusy()
    job = await bench.make_job()
    assert await _claimed_ids(second) == [job.id]
    with pytest.raises(StoreBusy):
        await first


@pytest.mark.parametrize("seed", range(5))
async def test_claims_that_start_and_stop_at_random_leave_no_job_unclaimed(bench: Bench, seed: int) -> None:
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
            task = _start_claim(jobs, "visitor")
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
            await _cancel_tasks([task])
            for claim in [] if task.cancelled() else task.result():
                await jobs.release(claim)

    tasks: list[asyncio.Task[None]] = [asyncio.create_task(work(n)) for n in range(3)]
    tasks += [asyncio.create_task(come_and_go()) for _ in range(4)]
    enqueued_ids = []
    for _ in range(60):
        enqueued_ids.append((await bench.make_job()).id)
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await all_done.wait()
    await _cancel_tasks(tasks)
    assert sorted(done) == sorted(enqueued_ids)
    stored = (await bench.jobs.list(bench.tenant, limit=1000)).items
    assert {(job.status, job.failures, job.crashes) for job in stored} == {(JobStatus.SUCCEEDED, 0, 0)}


# -- canceled claims ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait_seconds", [0, 60])
async def test_a_claim_canceled_during_its_command_releases_its_jobs(bench: Bench, wait_seconds: float) -> None:
    jobs = [await bench.make_job(max_attempts=1) for _ in range(3)]
    claiming = asyncio.create_task(bench.jobs.claim("canceled", TYPES, limit=3, wait_seconds=wait_seconds))
    await asyncio.sleep(0)  # The command has been sent.
    await _cancel_tasks([claiming])
    await eventually(lambda: _are_all_claimed(bench, jobs))  # On PostgreSQL another claim may overtake this one.
    claims: list[Claim] = []
    async with asyncio.timeout(30):
        while len(claims) < 3:
            claims += await bench.jobs.claim("remaining", TYPES, limit=3, wait_seconds=60)
    assert sorted(claim.job.id for claim in claims) == [job.id for job in jobs]
    assert {(c.job.attempts, c.job.failures, c.job.crashes) for c in claims} == {(2, 0, 0)}
    outcomes = [(await bench.jobs.attempts(bench.tenant, job.id))[0].outcome for job in jobs]
    assert outcomes == [AttemptOutcome.RELEASED] * 3


async def _are_all_claimed(bench: Bench, jobs: list[Job]) -> bool:
    return all([(await bench.reload(job)).attempts == 1 for job in jobs])


async def test_closing_waits_until_jobs_of_canceled_claims_are_released(bench: Bench) -> None:
    job = await bench.make_job()
    claiming = asyncio.create_task(bench.jobs.claim("canceled", TYPES))
    await asyncio.sleep(0)  # The command has been sent.
    await _cancel_tasks([claiming])
    await bench.jobs.close()
    current = await bench.reload(job)
    assert (current.status, current.attempts, current.failures, current.crashes) == (JobStatus.QUEUED, 1, 0, 0)


async def test_a_claim_canceled_before_its_command_takes_no_job(bench: Bench) -> None:
    job = await bench.make_job()
    claiming = asyncio.create_task(bench.jobs.claim("canceled", TYPES))
    await _cancel_tasks([claiming])
    assert (await bench.reload(job)).attempts == 0


# -- the maintenance loop -----------------------------------------------------------------------------------


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


async def test_the_maintenance_loop_wakes_a_claim_when_a_job_becomes_due(engine: str, tmp_path: Path) -> None:
    async with _in_real_time(engine, tmp_path / "data") as (store, _, tenant):
        jobs = store.jobs()
        await jobs.enqueue(tenant, "noop", "in an hour", delay=3600)
        waiting = _start_claim(jobs)
        await store.found_nothing(1)
        soon = await jobs.enqueue(tenant, "noop", "soon", delay=0.2)
        assert await _claimed_ids(waiting) == [soon.job.id]
        assert store.looks == 2


async def test_the_maintenance_loop_stops_while_it_is_rescheduled(engine: str, tmp_path: Path) -> None:
    async with _in_real_time(engine, tmp_path / "data") as (store, maintenance, tenant):
        stopping: list[asyncio.Task[None]] = []
        store.on_maintenance_rescheduled(lambda: stopping.append(asyncio.create_task(maintenance.stop())))
        await store.jobs().enqueue(tenant, "noop", delay=3600)
        (stop,) = stopping
        async with asyncio.timeout(30):
            await stop


async def test_one_pass_of_the_maintenance_loop_promotes_and_sweeps(bench: Bench) -> None:
    await bench.make_job(delay=10)
    await bench.make_claim("held")
    bench.clock.advance(seconds=LEASE_SECONDS)
    result = await JobMaintenance(bench.store).run_once()
    assert (result.promoted, result.swept) == (1, 1)


async def _cancel_tasks(tasks: list[asyncio.Task[None]] | list[ClaimTask]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


# -- several types and closing ------------------------------------------------------------------------------


async def test_a_claim_that_takes_another_type_passes_the_wake_up_on(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    both = asyncio.create_task(jobs.claim("both", ["x", "y"], wait_seconds=60))
    await store.found_nothing(1)
    one = asyncio.create_task(jobs.claim("one", ["x"], wait_seconds=60))
    await store.found_nothing(2)
    slow, fast = await jobs.enqueue_many(
        [new_job(bench.tenant, "x", priority=5), new_job(bench.tenant, "y", priority=1)]
    )
    assert await _claimed_ids(both) == [fast.job.id]
    assert await _claimed_ids(one) == [slow.job.id]


async def test_closing_ends_waiting_claims_without_jobs(bench: Bench) -> None:
    store = WatchedStore(bench.store)
    jobs = store.jobs()
    waiting = _start_claim(jobs)
    await store.found_nothing(1)
    await jobs.close()
    assert await _claimed_ids(waiting) == []
