"""Explanations use claims that workers made in other processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg

from ingot.engines.postgres import PostgresStore
from ingot.engines.postgres.maintenance import record_requests
from ingot.jobs import Job
from tests.factories import Bench, open_bench
from tests.postgres import database_for, until_blocked


async def record_claims(bench: Bench) -> None:
    """Record for other processes which types workers claim in this one."""
    assert isinstance(bench.store, PostgresStore)
    await record_requests(bench.store.database, bench.store.lane_cache)


async def has_worker(bench: Bench, job: Job) -> bool:
    reasons = (await bench.jobs.explain(job.tenant, job.id)).reasons
    return "no_worker" not in [reason.code for reason in reasons]


async def test_a_claim_in_another_process_counts_for_its_tenants(tmp_path: Path) -> None:
    async with open_bench("postgres", tmp_path / "data") as here, open_bench("postgres", tmp_path / "data") as there:
        other = (await here.tenants.create("other")).id
        jobs = [await here.make_job(tenant=tenant) for tenant in (here.tenant, other)]
        await there.jobs.claim("worker", ["else"])
        await there.jobs.pause(other, "noop")
        await there.jobs.claim("worker", ["noop"], tenant=other)
        await record_claims(there)
        assert [await has_worker(here, job) for job in jobs] == [False, True]
        assert [await has_worker(there, job) for job in jobs] == [False, True]
        await there.jobs.pause(here.tenant, "noop")
        await there.jobs.claim("worker", ["noop"])
        await record_claims(there)
        assert [await has_worker(here, job) for job in jobs] == [True, True]


async def test_a_claim_counts_during_and_after_a_failed_recording(tmp_path: Path) -> None:
    async with open_bench("postgres", tmp_path / "data") as bench:
        job = await bench.make_job(delay=60)
        await bench.jobs.claim("worker", ["noop"])
        holder = await asyncpg.connect((await database_for(tmp_path / "data")).owner_url)
        try:
            await holder.execute("BEGIN; LOCK TABLE ingot.askers IN EXCLUSIVE MODE")
            recording = asyncio.ensure_future(record_claims(bench))
            await until_blocked(holder, holder)
            assert await has_worker(bench, job)
            recording.cancel()
            await asyncio.wait([recording])
            assert await has_worker(bench, job)
        finally:
            await holder.close()
        await record_claims(bench)
        assert await has_worker(bench, job)
