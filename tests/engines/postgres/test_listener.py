"""Two processes on one database: news reach the other at once, and without news polling finds everything."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from ingot.engines.postgres import PostgresStore
from ingot.engines.postgres.connection import Connection, Record
from ingot.engines.postgres.maintenance import fold_counts
from ingot.identity import Tenants
from ingot.jobs import Definition, JobStatus
from ingot.jobs.job_options import new_job
from ingot.jobs.maintenance import JobMaintenance
from ingot.kernel.clock import SystemClock
from tests.conformance.counting_store import WatchedStore
from tests.engines.postgres.two_stores import two_stores
from tests.factories import LEASE_SECONDS, open_bench
from tests.postgres import database_for
from tests.waiting import eventually

NEVER = 1e9
IDLE_SECONDS = 4.0
LISTENERS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE 'LISTEN%'"


async def test_news_of_an_enqueue_wake_a_claim_that_waits_in_another_process(tmp_path: Path) -> None:
    async with two_stores(tmp_path, listens=True) as (here, there):
        there.store.lane_cache.poll_interval_seconds = NEVER  # type: ignore[union-attr]
        waiting = asyncio.create_task(there.jobs.claim("w", ["noop"], wait_seconds=60))
        await eventually(lambda: there.jobs.waiting_claims == 1)
        job = await here.make_job()
        assert [claim.job.id for claim in await waiting] == [job.id]


async def test_without_news_a_claim_that_waits_in_another_process_finds_work_by_looking(tmp_path: Path) -> None:
    async with two_stores(tmp_path, listens=False) as (here, there):
        waiting = asyncio.create_task(there.jobs.claim("w", ["noop"], wait_seconds=60))
        await eventually(lambda: there.jobs.waiting_claims == 1)
        job = await here.make_job()
        assert [claim.job.id for claim in await waiting] == [job.id]


async def test_work_put_before_a_position_by_another_process_is_found_after_a_while(tmp_path: Path) -> None:
    async with two_stores(tmp_path, listens=False) as (here, there):
        jobs = [await there.make_job(priority=3) for _ in range(3)]
        assert len(await there.jobs.claim("w", ["noop"], limit=1)) == 1
        first = await here.make_job(priority=1)
        async with asyncio.timeout(30):
            found: list[str] = []
            while len(found) < 3:
                found += [claim.job.id for claim in await there.jobs.claim("w", ["noop"], limit=1)]
                await asyncio.sleep(0.3)
        assert sorted(found) == sorted([first.id, jobs[1].id, jobs[2].id])


async def test_what_another_process_puts_into_one_of_very_many_lanes_is_found_after_a_while(tmp_path: Path) -> None:
    async with two_stores(tmp_path, listens=False) as (here, there):
        await here.jobs.define(Definition(type="noop", limit_key="{key}"))
        await there.jobs.enqueue_many(
            [
                *[new_job(there.tenant, "noop", {"key": "x"}, priority=2) for _ in range(2)],
                *[new_job(there.tenant, "noop", {"key": n % 100}, priority=4) for n in range(1000)],
            ]
        )
        assert len(await there.jobs.claim("w", ["noop"], limit=1)) == 1
        urgent = await here.make_job(payload={"key": "x"}, priority=1)
        async with asyncio.timeout(30):
            found: list[str] = []
            while urgent.id not in found:
                found += [claim.job.id for claim in await there.jobs.claim("w", ["noop"], limit=3)]
                await asyncio.sleep(0.3)
        assert len(found) < 200


async def test_a_listener_that_lost_its_connection_listens_again(tmp_path: Path) -> None:
    async with two_stores(tmp_path, listens=True) as (here, there):
        there.store.lane_cache.poll_interval_seconds = NEVER  # type: ignore[union-attr]
        admin = await asyncpg.connect((await database_for(tmp_path)).owner_url)
        ended = {row["pid"] for row in await admin.fetch(LISTENERS)}
        await admin.execute(f"SELECT pg_terminate_backend(pid) FROM ({LISTENERS}) AS listeners")
        waiting = asyncio.create_task(there.jobs.claim("w", ["noop"], wait_seconds=60))

        async def listen_again() -> bool:
            listeners = {row["pid"] for row in await admin.fetch(LISTENERS)}
            return len(listeners) == len(ended) and not listeners & ended

        await eventually(listen_again)
        await admin.close()
        job = await here.make_job()
        assert [claim.job.id for claim in await waiting] == [job.id]


async def test_claims_that_wait_cost_less_than_one_query_a_second(tmp_path: Path) -> None:
    queries = 0

    class Counting(Connection):
        async def fetch(self, *args: Any, **options: Any) -> list[Record]:  # type: ignore[override]
            nonlocal queries
            queries += 1
            return await super().fetch(*args, **options)

    url = (await database_for(tmp_path)).server_url
    store = await PostgresStore.open(url, clock=SystemClock(), lease_seconds=LEASE_SECONDS, connection_class=Counting)
    maintenance, watched = JobMaintenance(store), WatchedStore(store)
    jobs = watched.jobs()
    try:
        store.listener.start()
        maintenance.start()
        tenant = (await Tenants(store).ensure_default()).id
        await jobs.enqueue(tenant, "later", delay=3600)
        await jobs.enqueue(tenant, "held")
        await jobs.claim("worker", ["held"])
        waiting = [asyncio.create_task(jobs.claim(f"w{n}", ["noop"], wait_seconds=60)) for n in range(10)]
        await watched.found_nothing(len(waiting))
        await fold_counts(store.database)
        store.lane_cache.has_count_deltas = False
        before, began = queries, time.monotonic()
        await asyncio.sleep(IDLE_SECONDS)
        assert queries - before < time.monotonic() - began
        await jobs.enqueue(tenant, "noop")
        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=30)
        assert len(done) == 1
        for claim in pending:
            claim.cancel()
        await asyncio.wait(pending)
    finally:
        await maintenance.stop()
        await jobs.close()
        await store.close()


@pytest.mark.parametrize("folds", [0, 1, 2])
async def test_counts_are_exact_however_much_of_them_is_folded(tmp_path: Path, folds: int) -> None:
    async with open_bench("postgres", tmp_path / "data") as bench:
        assert isinstance(bench.store, PostgresStore)
        for _ in range(3):
            await bench.make_job_in(JobStatus.SUCCEEDED)
            for _ in range(folds):
                await fold_counts(bench.store.database)
        await bench.make_job()
        counts = (await bench.jobs.summary(bench.tenant)).counts
        assert {status: jobs for status, jobs in counts.items() if jobs} == {
            JobStatus.SUCCEEDED: 3,
            JobStatus.QUEUED: 1,
        }


async def test_two_folds_at_once_count_nothing_twice(tmp_path: Path) -> None:
    async with open_bench("postgres", tmp_path / "data") as bench:
        assert isinstance(bench.store, PostgresStore)
        for _ in range(20):
            await bench.make_job()
        await asyncio.gather(*(fold_counts(bench.store.database) for _ in range(8)))
        assert (await bench.jobs.summary(bench.tenant)).counts[JobStatus.QUEUED] == 20
