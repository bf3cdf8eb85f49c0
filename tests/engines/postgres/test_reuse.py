"""Reuse among processes: of those that ask for the same at once, one makes the job."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from ingot.jobs import Definition, Enqueued, JobStatus
from tests.factories import open_bench
from tests.postgres import database_for

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


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
            while await holder.fetchval(WAITING) < len(asking):
                pass
            await holder.execute("COMMIT")
            answers: list[Enqueued] = await asyncio.gather(*asking)
        finally:
            await holder.close()
        assert sorted((answer.created, answer.reused) for answer in answers) == [(False, True), (True, False)]
        assert len({answer.job.id for answer in answers} - {old.id}) == 1
