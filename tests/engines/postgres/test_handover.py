"""Jobs that are made while claims wait for them: the call that makes them hands them out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
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
from tests.conformance.counting_store import WatchedStore
from tests.engines.postgres.blob_cluster import open_server
from tests.engines.postgres.two_stores import two_stores
from tests.factories import LEASE_SECONDS, Bench, open_bench
from tests.postgres import borrowed_database, clocked, database_for

COMBINED = "UNION ALL"
IN_ONE_COMMIT = "SELECT bool_and(j.xmin = l.xmin) FROM ingot.jobs AS j JOIN ingot.leases AS l USING (id)"

Waiting = asyncio.Task[list[Claim]]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench("postgres", tmp_path) as made:
        yield made


async def _wait(bench: Bench, worker: str = "worker", *, types: tuple[str, ...] = ("noop",), limit: int = 1) -> Waiting:
    """A claim that has looked, has found nothing, and waits."""
    store = WatchedStore(bench.store)
    claiming = store.jobs().claim(worker, types, limit=limit, tenant=bench.tenant, wait_seconds=30)
    waiting = asyncio.create_task(claiming)
    await store.found_nothing(1)
    return waiting


async def _ids(*waiting: Waiting) -> list[str]:
    return [claim.job.id for task in waiting for claim in await asyncio.wait_for(task, 30)]


async def _in_one_commit(folder: Path) -> bool:
    connection = await asyncpg.connect((await database_for(folder)).owner_url)
    try:
        return bool(await connection.fetchval(IN_ONE_COMMIT))
    finally:
        await connection.close()


@asynccontextmanager
async def _acting(acts: list[Callable[[], object]]) -> AsyncIterator[Bench]:
    """A bench that takes an act from the list after each combined call was committed, before its answer is read."""
    async with borrowed_database() as database:
        clock = ManualClock()
        plain: Any = clocked(clock)

        class Acting(plain):  # type: ignore[misc]
            async def fetch(self, query: str, *values: Any, **options: Any) -> Any:
                rows = await super().fetch(query, *values, **options)
                if COMBINED in query and acts:
                    acts.pop()()
                return rows

        store = await open_server(database, clock, Acting)
        try:
            clock.advance(seconds=LEASE_SECONDS)
            yield Bench(store, clock, await Tenants(store).ensure_default())
        finally:
            await store.close()


async def test_a_waiting_claim_gets_the_job_in_the_commit_that_makes_it(bench: Bench, tmp_path: Path) -> None:
    waiting = await _wait(bench)
    job = await bench.make_job(payload={"a": 1}, tags=["red"])
    (claim,) = await waiting
    assert (claim.job.id, bytes(claim.job.payload), claim.job.tags) == (job.id, b'{"a":1}', ("red",))
    assert (job.status, claim.job.status, claim.job.attempts) == (JobStatus.QUEUED, JobStatus.RUNNING, 1)
    assert await _in_one_commit(tmp_path)
    assert (await bench.event_names())[-2:] == ["job.created", "job.started"]


async def test_jobs_that_nobody_waited_for_are_announced(bench: Bench) -> None:
    first = await _wait(bench, "first")
    other = await _wait(bench, "other", types=("noop", "echo"))  # It asks for more, so it is served by itself.
    jobs = [one.job.id for one in await bench.jobs.enqueue_many([new_job(bench.tenant, "noop") for _ in range(3)])]
    taken = await _ids(first, other)
    left = [claim.job.id for claim in await bench.jobs.claim("third", ["noop"], limit=9)]
    assert sorted(taken + left) == sorted(jobs)
    assert len(taken) == 2


async def test_claims_share_the_jobs_of_one_call_in_their_order(bench: Bench, tmp_path: Path) -> None:
    waiting = [await _wait(bench, f"worker-{number}", limit=2) for number in range(3)]
    jobs = await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", priority=5 - n) for n in range(5)])
    ids = [made.job.id for made in jobs]
    found = await asyncio.gather(*(_ids(task) for task in waiting))
    assert sorted(id for own in found for id in own) == sorted(ids)
    assert found[0] == ids[:2:-1]  # The longest waiting has what comes first.


async def test_of_claims_on_two_servers_one_gets_the_job(tmp_path: Path) -> None:
    async with two_stores(tmp_path, listens=True) as (one, two):
        here, there = await _wait(one, "here"), await _wait(two, "there")
        first = await one.make_job()
        assert await _ids(here) == [first.id]
        second = await one.make_job()  # Nobody waits here any more, so the other server hears of it.
        assert await _ids(there) == [second.id]


async def test_older_work_of_another_server_is_taken_first_and_the_new_job_is_announced(tmp_path: Path) -> None:
    async with two_stores(tmp_path, listens=False) as (one, two):
        waiting = await _wait(one, "first")
        older = await two.make_job()
        newer = await one.make_job()
        assert await _ids(waiting) == [older.id]
        assert await _ids(await _wait_or_find(one)) == [newer.id]


async def _wait_or_find(bench: Bench) -> Waiting:
    return asyncio.create_task(bench.jobs.claim("next", ["noop"], tenant=bench.tenant, wait_seconds=30))


async def test_an_order_that_is_there_already_leaves_the_claim_waiting(bench: Bench) -> None:
    order = new_job(bench.tenant, "noop")
    first = await _wait(bench, "first")
    await bench.jobs.enqueue_many([order])
    assert await _ids(first) == [order.id]
    waiting = await _wait(bench)
    (again,) = await bench.jobs.enqueue_many([order])
    assert (again.created, again.job.id) == (False, order.id)
    job = await bench.make_job()
    assert await _ids(waiting) == [job.id]


async def test_an_order_that_answers_another_leaves_the_claim_waiting(bench: Bench) -> None:
    first = await _wait(bench, "first")
    job = await bench.make_job(idempotency_key="one")
    assert await _ids(first) == [job.id]
    waiting = await _wait(bench)
    assert (await bench.make_job(idempotency_key="one")).id == job.id
    second = await bench.make_job(idempotency_key="two")
    assert await _ids(waiting) == [second.id]


async def test_when_the_answer_is_lost_the_job_is_there_once_and_its_lease_runs_out() -> None:
    def lose() -> None:
        raise ConnectionResetError("the answer is lost")

    async with _acting([lose]) as bench:
        waiting = await _wait(bench)
        (made,) = await bench.jobs.enqueue_many([new_job(bench.tenant, "noop")])
        assert made.created
        assert not waiting.done()
        store: Any = bench.store
        await poll(store.database, store.lane_cache)
        for seconds in (LEASE_SECONDS + 1, 3600):  # The lease runs out, then the time until the next attempt.
            bench.clock.advance(seconds=seconds)
            await bench.jobs.maintain()
        assert await _ids(waiting) == [made.job.id]
        assert (await bench.reload(made.job)).crashes == 1


async def test_the_job_of_a_claim_that_went_away_is_given_back() -> None:
    acts: list[Callable[[], object]] = []
    async with _acting(acts) as bench:
        waiting = await _wait(bench)
        acts.append(waiting.cancel)
        job = await bench.make_job()
        assert await _ids(await _wait_or_find(bench)) == [job.id]
        assert waiting.cancelled()
        assert (await bench.reload(job)).failures == 0


async def test_what_is_limited_paused_or_later_is_not_handed_out_early(bench: Bench) -> None:
    await bench.jobs.define(Definition(type="noop", tenant=bench.tenant, max_running=1))
    await bench.jobs.maintain()
    first, second = await _wait(bench, "first"), await _wait(bench, "second")
    jobs = [(await bench.make_job()).id for _ in range(2)]
    later = await _wait(bench, "later", types=("echo",))
    await bench.make_job("echo", delay=60)
    assert await _ids(first) == jobs[:1]
    await asyncio.sleep(0.1)
    assert not second.done()
    assert not later.done()
    for task in (second, later):
        task.cancel()
