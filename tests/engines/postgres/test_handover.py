"""Handover: the call that creates jobs leases them to waiting claims."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from ingot.engines.postgres.maintenance import poll
from ingot.identity.tenants import Tenants
from ingot.jobs import Claim, JobStatus
from ingot.jobs.job_options import new_job
from ingot.jobs.model import Definition
from ingot.kernel.clock import ManualClock
from ingot.kernel.errors import StoreError
from tests.conformance.counting_store import WatchedStore
from tests.engines.postgres.blob_cluster import open_server
from tests.engines.postgres.two_stores import two_stores
from tests.factories import LEASE_SECONDS, Bench, open_bench
from tests.postgres import borrowed_database, clocked, database_for, until_blocked

COMBINED = "UNION ALL"
IN_ONE_COMMIT = "SELECT bool_and(j.xmin = l.xmin) FROM ingot.jobs AS j JOIN ingot.leases AS l USING (id)"

ClaimTask = asyncio.Task[list[Claim]]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench("postgres", tmp_path) as opened:
        yield opened


async def _start_waiting_claim(
    bench: Bench, worker: str = "worker", *, types: tuple[str, ...] = ("noop",), limit: int = 1
) -> ClaimTask:
    """Start a claim that finds no job and waits."""
    store = WatchedStore(bench.store)
    claiming = store.jobs().claim(worker, types, limit=limit, tenant=bench.tenant, wait_seconds=30)
    waiting = asyncio.create_task(claiming)
    await store.found_nothing(1)
    return waiting


async def _claimed_ids(*waiting: ClaimTask) -> list[str]:
    return [claim.job.id for task in waiting for claim in await asyncio.wait_for(task, 30)]


@asynccontextmanager
async def _owner_of(folder: Path) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect((await database_for(folder)).owner_url)
    try:
        yield connection
    finally:
        await connection.close()


async def _in_one_commit(folder: Path) -> bool:
    async with _owner_of(folder) as owner:
        return bool(await owner.fetchval(IN_ONE_COMMIT))


@asynccontextmanager
async def _open_with_actions(actions: list[Callable[[], object]]) -> AsyncIterator[Bench]:
    """A bench that runs an action from the list after each combined call has committed, before its result is read."""
    async with borrowed_database() as database:
        clock = ManualClock()
        plain: Any = clocked(clock)

        class ActingConnection(plain):  # type: ignore[misc]
            async def fetch(self, query: str, *values: Any, **options: Any) -> Any:
                rows = await super().fetch(query, *values, **options)
                if COMBINED in query and actions:
                    actions.pop()()
                return rows

        store = await open_server(database, clock, ActingConnection)
        try:
            clock.advance(seconds=LEASE_SECONDS)
            yield Bench(store, clock, await Tenants(store).ensure_default())
        finally:
            await store.close()


async def test_a_waiting_claim_gets_the_job_in_the_commit_that_creates_it(bench: Bench, tmp_path: Path) -> None:
    waiting = await _start_waiting_claim(bench)
    job = await bench.make_job(payload={"a": 1}, tags=["red"])
    (claim,) = await waiting
    assert (claim.job.id, bytes(claim.job.payload), claim.job.tags) == (job.id, b'{"a":1}', ("red",))
    assert (job.status, claim.job.status, claim.job.attempts) == (JobStatus.QUEUED, JobStatus.RUNNING, 1)
    assert await _in_one_commit(tmp_path)
    assert (await bench.event_names())[-2:] == ["job.created", "job.started"]


async def test_jobs_not_handed_over_are_announced(bench: Bench) -> None:
    first = await _start_waiting_claim(bench, "first")
    other = await _start_waiting_claim(
        bench, "other", types=("noop", "echo")
    )  # A claim of several types is not served by the handover.
    jobs = [one.job.id for one in await bench.jobs.enqueue_many([new_job(bench.tenant, "noop") for _ in range(3)])]
    claimed = await _claimed_ids(first, other)
    remaining = [claim.job.id for claim in await bench.jobs.claim("third", ["noop"], limit=9)]
    assert sorted(claimed + remaining) == sorted(jobs)
    assert len(claimed) == 2


async def test_waiting_claims_share_the_jobs_of_one_call_in_order(bench: Bench, tmp_path: Path) -> None:
    waiting = [await _start_waiting_claim(bench, f"worker-{number}", limit=2) for number in range(3)]
    jobs = await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", priority=5 - n) for n in range(5)])
    ids = [opened.job.id for opened in jobs]
    found = await asyncio.gather(*(_claimed_ids(task) for task in waiting))
    assert sorted(id for own in found for id in own) == sorted(ids)
    assert found[0] == ids[:2:-1]  # The longest waiting claim gets the first jobs.


async def test_a_job_is_handed_to_a_claim_of_the_same_server_first(tmp_path: Path) -> None:
    async with two_stores(tmp_path, listens=True) as (one, two):
        here, there = await _start_waiting_claim(one, "here"), await _start_waiting_claim(two, "there")
        first = await one.make_job()
        assert await _claimed_ids(here) == [first.id]
        second = await one.make_job()  # No claim waits on this server, so the other one is notified.
        assert await _claimed_ids(there) == [second.id]


async def test_an_older_job_of_another_server_is_claimed_first_and_the_new_job_is_announced(tmp_path: Path) -> None:
    async with two_stores(tmp_path, listens=False) as (one, two):
        waiting = await _start_waiting_claim(one, "first")
        older = await two.make_job()
        newer = await one.make_job()
        assert await _claimed_ids(waiting) == [older.id]
        assert await _claimed_ids(await _start_claim(one)) == [newer.id]


async def _start_claim(bench: Bench) -> ClaimTask:
    return asyncio.create_task(bench.jobs.claim("next", ["noop"], tenant=bench.tenant, wait_seconds=30))


async def test_a_resent_order_leaves_the_claim_waiting(bench: Bench) -> None:
    order = new_job(bench.tenant, "noop")
    first = await _start_waiting_claim(bench, "first")
    await bench.jobs.enqueue_many([order])
    assert await _claimed_ids(first) == [order.id]
    waiting = await _start_waiting_claim(bench)
    (again,) = await bench.jobs.enqueue_many([order])
    assert (again.created, again.job.id) == (False, order.id)
    job = await bench.make_job()
    assert await _claimed_ids(waiting) == [job.id]


async def test_the_next_job_is_handed_over_after_a_resent_order(bench: Bench, tmp_path: Path) -> None:
    order = new_job(bench.tenant, "noop")
    first = await _start_waiting_claim(bench, "first")
    await bench.jobs.enqueue_many([order])
    await _claimed_ids(first)
    waiting = await _start_waiting_claim(bench)
    await bench.jobs.enqueue_many([order])
    await bench.make_job()
    await _claimed_ids(waiting)
    assert await _in_one_commit(tmp_path)


async def test_a_claim_that_the_database_refuses_does_not_stop_the_new_job(bench: Bench, tmp_path: Path) -> None:
    async with _owner_of(tmp_path) as owner:
        waiting = await _start_waiting_claim(bench)
        await owner.execute("ALTER TABLE ingot.leases ADD CONSTRAINT broken CHECK (worker_id <> 'worker') NOT VALID")
        try:
            job = await bench.make_job()
        finally:
            await owner.execute("ALTER TABLE ingot.leases DROP CONSTRAINT broken")
        assert job.status is JobStatus.QUEUED
        with suppress(StoreError):  # The claim was woken for the job and may have failed alone.
            await waiting
        assert (await bench.reload(job)).status in (JobStatus.QUEUED, JobStatus.RUNNING)


async def test_a_job_of_a_later_transaction_is_not_handed_over(tmp_path: Path) -> None:
    async with (
        two_stores(tmp_path, listens=False) as (one, two),
        _owner_of(tmp_path) as owner,
        _owner_of(tmp_path) as observer,
    ):
        await one.make_job_in(JobStatus.SUCCEEDED)  # One transaction at a time adds types.
        waiting = await _start_waiting_claim(one, limit=2)
        async with owner.transaction():
            await owner.execute("INSERT INTO ingot.dedupe_keys VALUES ($1, 'key', gen_random_uuid())", one.tenant)
            enqueuing = asyncio.create_task(one.make_job(dedupe_key="key"))
            await until_blocked(observer, owner, enqueuing)
            later = await two.make_job(priority=1)
            await owner.execute("DELETE FROM ingot.dedupe_keys WHERE key = 'key'")
        earlier = await enqueuing
        assert await _claimed_ids(waiting) == [earlier.id]
        assert await _claimed_ids(await _start_claim(one)) == [later.id]


async def test_an_order_answered_by_its_idempotency_key_leaves_the_claim_waiting(bench: Bench) -> None:
    first = await _start_waiting_claim(bench, "first")
    job = await bench.make_job(idempotency_key="one")
    assert await _claimed_ids(first) == [job.id]
    waiting = await _start_waiting_claim(bench)
    assert (await bench.make_job(idempotency_key="one")).id == job.id
    second = await bench.make_job(idempotency_key="two")
    assert await _claimed_ids(waiting) == [second.id]


async def test_a_handover_whose_response_is_lost_creates_one_job_whose_lease_expires() -> None:
    def lose_response() -> None:
        raise ConnectionResetError("the response is lost")

    async with _open_with_actions([lose_response]) as bench:
        waiting = await _start_waiting_claim(bench)
        (opened,) = await bench.jobs.enqueue_many([new_job(bench.tenant, "noop")])
        assert opened.created
        assert not waiting.done()
        store: Any = bench.store
        await poll(store.database, store.lane_cache)
        for seconds in (LEASE_SECONDS + 1, 3600):  # First the lease expires, then the delay until the next attempt.
            bench.clock.advance(seconds=seconds)
            await bench.jobs.maintain()
        assert await _claimed_ids(waiting) == [opened.job.id]
        assert (await bench.reload(opened.job)).crashes == 1


async def test_a_job_handed_to_a_canceled_claim_is_released() -> None:
    actions: list[Callable[[], object]] = []
    async with _open_with_actions(actions) as bench:
        waiting = await _start_waiting_claim(bench)
        actions.append(waiting.cancel)
        job = await bench.make_job()
        assert await _claimed_ids(await _start_claim(bench)) == [job.id]
        assert waiting.cancelled()
        assert (await bench.reload(job)).failures == 0


async def test_limited_and_scheduled_jobs_are_not_handed_over(bench: Bench) -> None:
    await bench.jobs.define(Definition(type="noop", tenant=bench.tenant, max_running=1))
    await bench.jobs.maintain()
    first, second = await _start_waiting_claim(bench, "first"), await _start_waiting_claim(bench, "second")
    jobs = [(await bench.make_job()).id for _ in range(2)]
    later = await _start_waiting_claim(bench, "later", types=("echo",))
    await bench.make_job("echo", delay=60)
    assert await _claimed_ids(first) == jobs[:1]
    await asyncio.sleep(0.1)
    assert not second.done()
    assert not later.done()
    for task in (second, later):
        task.cancel()
