"""Reuse across processes: one of several concurrent equal requests creates the job."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from ingot.engines.postgres.connection import PlainConnection
from ingot.jobs import Definition, Enqueued, JobStatus
from tests.factories import open_bench
from tests.postgres import database_for

COUNT_BLOCKED_SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


async def wait_for_blocked_sessions(holder: PlainConnection, count: int) -> None:
    """Wait until this many sessions wait for a lock. A transaction caches statistics until they are cleared."""
    while await holder.fetchval(COUNT_BLOCKED_SESSIONS) < count:
        await holder.execute("SELECT pg_stat_clear_snapshot()")


@pytest.mark.parametrize("status", [JobStatus.DEAD, JobStatus.CANCELED])
async def test_two_processes_that_find_a_dead_job_create_one_new_job(tmp_path: Path, status: JobStatus) -> None:
    async with open_bench("postgres", tmp_path / "data") as one, open_bench("postgres", tmp_path / "data") as other:
        await one.jobs.define(Definition(type="noop", reuse=True))
        old = await one.make_job_in(status, payload=1)
        for bench in (one, other):
            await bench.make_job("noop", 2)  # Both processes have loaded the definition.
        holder = await asyncpg.connect((await database_for(tmp_path / "data")).owner_url)
        try:
            await holder.execute(f"BEGIN; SELECT FROM ingot.reuse_keys WHERE job = '{old.id}' FOR UPDATE")
            enqueuing = [asyncio.ensure_future(bench.jobs.enqueue(one.tenant, "noop", 1)) for bench in (one, other)]
            await wait_for_blocked_sessions(holder, len(enqueuing))
            await holder.execute("COMMIT")
            answers: list[Enqueued] = await asyncio.gather(*enqueuing)
        finally:
            await holder.close()
        assert sorted((answer.created, answer.reused) for answer in answers) == [(False, True), (True, False)]
        assert len({answer.job.id for answer in answers} - {old.id}) == 1


async def test_a_reuse_key_replaced_by_another_process_during_a_call_is_kept(tmp_path: Path) -> None:
    async with open_bench("postgres", tmp_path / "data") as one, open_bench("postgres", tmp_path / "data") as other:
        await one.jobs.define(Definition(type="noop", reuse=True))
        await one.make_job_in(JobStatus.DEAD, payload=1)
        for bench in (one, other):
            await bench.make_job("noop", 2)  # Both processes have loaded the definition.
        holder = await asyncpg.connect((await database_for(tmp_path / "data")).owner_url)
        try:
            # The first call has read the dead job, and waits for its idempotency key before it replaces the reuse key.
            await holder.execute("BEGIN")
            await holder.execute(
                "INSERT INTO ingot.idempotency_keys VALUES ($1, 'noop', 'key', gen_random_uuid(), '')", one.tenant
            )
            slow = asyncio.ensure_future(one.jobs.enqueue(one.tenant, "noop", 1, idempotency_key="key"))
            await wait_for_blocked_sessions(holder, 1)
            quick = await other.jobs.enqueue(one.tenant, "noop", 1)
            await holder.execute("ROLLBACK")
            answer = await slow
        finally:
            await holder.close()
        assert (quick.created, quick.reused) == (True, False)
        assert (answer.job.id, answer.created, answer.reused) == (quick.job.id, False, True)
