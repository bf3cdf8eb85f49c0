"""Reuse among processes: of those that ask for the same at once, one makes the job."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from ingot.engines.postgres.connection import PlainConnection
from ingot.jobs import Definition, Enqueued, JobStatus
from tests.factories import open_bench
from tests.postgres import database_for

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


async def until_waiting(holder: PlainConnection, count: int) -> None:
    """Return when so many sessions wait for a lock. A transaction caches what it sees of other sessions."""
    while await holder.fetchval(WAITING) < count:
        await holder.execute("SELECT pg_stat_clear_snapshot()")


@pytest.mark.parametrize("status", [JobStatus.DEAD, JobStatus.CANCELED])
async def test_two_processes_that_find_a_dead_job_make_one(tmp_path: Path, status: JobStatus) -> None:
    async with open_bench("postgres", tmp_path / "data") as one, open_bench("postgres", tmp_path / "data") as other:
        await one.jobs.define(Definition(type="noop", reuse=True))
        old = await one.make_job_in(status, payload=1)
        for bench in (one, other):
            await bench.make_job("noop", 2)  # Both know the definition now.
        holder = await asyncpg.connect((await database_for(tmp_path / "data")).owner_url)
        try:
            await holder.execute(f"BEGIN; SELECT FROM ingot.reuse_keys WHERE job = '{old.id}' FOR UPDATE")
            asking = [asyncio.ensure_future(bench.jobs.enqueue(one.tenant, "noop", 1)) for bench in (one, other)]
            await until_waiting(holder, len(asking))
            await holder.execute("COMMIT")
            answers: list[Enqueued] = await asyncio.gather(*asking)
        finally:
            await holder.close()
        assert sorted((answer.created, answer.reused) for answer in answers) == [(False, True), (True, False)]
        assert len({answer.job.id for answer in answers} - {old.id}) == 1


async def test_a_key_that_another_process_takes_over_during_a_call_stays_its_own(tmp_path: Path) -> None:
    async with open_bench("postgres", tmp_path / "data") as one, open_bench("postgres", tmp_path / "data") as other:
        await one.jobs.define(Definition(type="noop", reuse=True))
        await one.make_job_in(JobStatus.DEAD, payload=1)
        for bench in (one, other):
            await bench.make_job("noop", 2)  # Both know the definition now.
        holder = await asyncpg.connect((await database_for(tmp_path / "data")).owner_url)
        try:
            # The first call has seen the dead job, and waits for its idempotency key before it replaces that.
            await holder.execute("BEGIN")
            await holder.execute(
                "INSERT INTO ingot.idempotency_keys VALUES ($1, 'noop', 'key', gen_random_uuid(), '')", one.tenant
            )
            slow = asyncio.ensure_future(one.jobs.enqueue(one.tenant, "noop", 1, idempotency_key="key"))
            await until_waiting(holder, 1)
            quick = await other.jobs.enqueue(one.tenant, "noop", 1)
            await holder.execute("ROLLBACK")
            answer = await slow
        finally:
            await holder.close()
        assert (quick.created, quick.reused) == (True, False)
        assert (answer.job.id, answer.created, answer.reused) == (quick.job.id, False, True)
