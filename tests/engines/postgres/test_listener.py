"""Two processes on one database: notifications reach the other at once, and polling finds everything without them."""

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


async def test_an_enqueue_wakes_a_waiting_claim_in_another_process(tmp_path: Path) -> None:
    async with two_stores(tmp_path, listens=True) as (bench, other_process):
        other_process.store.lane_cache.poll_interval_seconds = NEVER  # type: ignore[union-attr]
        waiting = asyncio.create_task(other_process.jobs.claim("w", ["noop"], wait_seconds=60))
        await eventually(lambda: other_process.jobs.waiting_claims == 1)
        job = await bench.make_job()
        assert [claim.job.id for claim in await waiting] == [job.id]


async def test_a_waiting_claim_in_another_process_finds_jobs_by_polling(tmp_path: Path) -> None:
    async with two_stores(tmp_path, listens=False) as (bench, other_process):
        waiting = asyncio.create_task(other_process.jobs.claim("w", ["noop"], wait_seconds=60))
        await eventually(lambda: other_process.jobs.waiting_claims == 1)
        job = await bench.make_job()
        assert [claim.job.id for claim in await waiting] == [job.id]


async def test_a_job_enqueued_before_the_hint_by_another_process_is_found(tmp_path: Path) -> None:
    async with two_stores(tmp_path, listens=False) as (bench, other_process):
        jobs = [await other_process.make_job(priority=3) for _ in range(3)]
        assert len(await other_process.jobs.claim("w", ["noop"], limit=1)) == 1
        first = await bench.make_job(priority=1)
        async with asyncio.timeout(30):
            claimed_ids: list[str] = []
            while len(claimed_ids) < 3:
                claimed_ids += [claim.job.id for claim in await other_process.jobs.claim("w", ["noop"], limit=1)]
                await asyncio.sleep(0.3)
        assert sorted(claimed_ids) == sorted([first.id, jobs[1].id, jobs[2].id])


async def test_a_job_enqueued_into_one_of_many_lanes_by_another_process_is_found(tmp_path: Path) -> None:
    async with two_stores(tmp_path, listens=False) as (bench, other_process):
        await bench.jobs.define(Definition(type="noop", limit_key="{key}"))
        await other_process.jobs.enqueue_many(
            [
                *[new_job(other_process.tenant, "noop", {"key": "x"}, priority=2) for _ in range(2)],
                *[new_job(other_process.tenant, "noop", {"key": n % 100}, priority=4) for n in range(1000)],
            ]
        )
        assert len(await other_process.jobs.claim("w", ["noop"], limit=1)) == 1
        urgent = await bench.make_job(payload={"key": "x"}, priority=1)
        async with asyncio.timeout(30):
            claimed_ids: list[str] = []
            while urgent.id not in claimed_ids:
                claimed_ids += [claim.job.id for claim in await other_process.jobs.claim("w", ["noop"], limit=3)]
                await asyncio.sleep(0.3)
        assert len(claimed_ids) < 200


async def test_a_listener_reconnects_after_losing_its_connection(tmp_path: Path) -> None:
    async with two_stores(tmp_path, listens=True) as (bench, other_process):
        other_process.store.lane_cache.poll_interval_seconds = NEVER  # type: ignore[union-attr]
        admin = await asyncpg.connect((await database_for(tmp_path)).owner_url)
        ended = {row["pid"] for row in await admin.fetch(LISTENERS)}
        await admin.execute(f"SELECT pg_terminate_backend(pid) FROM ({LISTENERS}) AS listeners")
        waiting = asyncio.create_task(other_process.jobs.claim("w", ["noop"], wait_seconds=60))

        async def listen_again() -> bool:
            listeners = {row["pid"] for row in await admin.fetch(LISTENERS)}
            return len(listeners) == len(ended) and not listeners & ended

        await eventually(listen_again)
        await admin.close()
        job = await bench.make_job()
        assert [claim.job.id for claim in await waiting] == [job.id]


async def test_waiting_claims_cost_less_than_one_query_a_second(tmp_path: Path) -> None:
    queries = 0

    class CountingConnection(Connection):
        async def fetch(self, *args: Any, **options: Any) -> list[Record]:  # type: ignore[override]
            nonlocal queries
            queries += 1
            return await super().fetch(*args, **options)

    url = (await database_for(tmp_path)).server_url
    store = await PostgresStore.open(
        url, clock=SystemClock(), lease_seconds=LEASE_SECONDS, connection_class=CountingConnection
    )
    maintenance, counting_store = JobMaintenance(store), WatchedStore(store)
    jobs = counting_store.jobs()
    try:
        store.listener.start()
        maintenance.start()
        tenant = (await Tenants(store).ensure_default()).id
        await jobs.enqueue(tenant, "later", delay=3600)
        await jobs.enqueue(tenant, "held")
        await jobs.claim("worker", ["held"])
        waiting = [asyncio.create_task(jobs.claim(f"w{n}", ["noop"], wait_seconds=60)) for n in range(10)]
        await counting_store.found_nothing(len(waiting))
        await fold_counts(store.database)
        store.lane_cache.has_count_deltas = False
        before, started_at = queries, time.monotonic()
        await asyncio.sleep(IDLE_SECONDS)
        assert queries - before < time.monotonic() - started_at
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
async def test_counts_are_exact_with_any_number_of_folds(tmp_path: Path, folds: int) -> None:
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


async def test_concurrent_folds_count_every_delta_once(tmp_path: Path) -> None:
    async with open_bench("postgres", tmp_path / "data") as bench:
        assert isinstance(bench.store, PostgresStore)
        for _ in range(20):
            await bench.make_job()
        await asyncio.gather(*(fold_counts(bench.store.database) for _ in range(8)))
        assert (await bench.jobs.summary(bench.tenant)).counts[JobStatus.QUEUED] == 20
