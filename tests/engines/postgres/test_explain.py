"""What one process knows of workers is told to the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg

from ingot.engines.postgres import PostgresStore
from ingot.engines.postgres.maintenance import record_requests
from ingot.jobs import Job
from tests.factories import Bench, open_bench
from tests.postgres import database_for, until_blocked


async def note(bench: Bench) -> None:
    """Let the others know which types workers ask for here."""
    assert isinstance(bench.store, PostgresStore)
    await record_requests(bench.store.database, bench.store.lane_cache)


async def has_worker(bench: Bench, job: Job) -> bool:
    reasons = (await bench.jobs.explain(job.tenant, job.id)).reasons
    return "no_worker" not in [reason.code for reason in reasons]


async def test_a_worker_that_asks_elsewhere_counts_for_those_it_asks_for(tmp_path: Path) -> None:
    async with open_bench("postgres", tmp_path / "data") as here, open_bench("postgres", tmp_path / "data") as there:
        other = (await here.tenants.create("other")).id
        jobs = [await here.make_job(tenant=tenant) for tenant in (here.tenant, other)]
        await there.jobs.claim("worker", ["else"])
        await there.jobs.pause(other, "noop")
        await there.jobs.claim("worker", ["noop"], tenant=other)
        await note(there)
        assert [await has_worker(here, job) for job in jobs] == [False, True]
        assert [await has_worker(there, job) for job in jobs] == [False, True]
        await there.jobs.pause(here.tenant, "noop")
        await there.jobs.claim("worker", ["noop"])
        await note(there)
        assert [await has_worker(here, job) for job in jobs] == [True, True]


async def test_a_worker_counts_while_the_others_are_told_and_when_they_cannot_be(tmp_path: Path) -> None:
    async with open_bench("postgres", tmp_path / "data") as bench:
        job = await bench.make_job(delay=60)
        await bench.jobs.claim("worker", ["noop"])
        holder = await asyncpg.connect((await database_for(tmp_path / "data")).owner_url)
        try:
            await holder.execute("BEGIN; LOCK TABLE ingot.askers IN EXCLUSIVE MODE")
            noting = asyncio.ensure_future(note(bench))
            await until_blocked(holder, holder)
            assert await has_worker(bench, job)
            noting.cancel()
            await asyncio.wait([noting])
            assert await has_worker(bench, job)
        finally:
            await holder.close()
        await note(bench)
        assert await has_worker(bench, job)
