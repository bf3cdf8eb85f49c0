"""The cost of a preview of retention on PostgreSQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ingot.engines.postgres import PostgresStore
from ingot.engines.postgres.retention import PREVIEW_JOBS_MAX
from ingot.engines.postgres.sql import SQL
from ingot.jobs import Definition, Done, Settle
from ingot.jobs.job_options import new_job
from tests.factories import open_bench

JOBS = 300
ROWS_PER_JOB_MAX = 100  # About twenty plan nodes see each job once; a nested loop over all jobs would see it 300 times.


def rows_of(node: dict[str, Any]) -> int:
    """The number of rows that all nodes of a plan returned or discarded."""
    own = node["Actual Rows"] + node.get("Rows Removed by Join Filter", 0) + node.get("Rows Removed by Filter", 0)
    return int(own * node["Actual Loops"]) + sum(rows_of(child) for child in node.get("Plans", ()))


async def test_a_preview_reads_each_finished_job_once(tmp_path: Path) -> None:
    async with open_bench("postgres", tmp_path / "data") as bench:
        assert isinstance(bench.store, PostgresStore)
        await bench.jobs.define(Definition(type="noop", retention_seconds=0))
        await bench.jobs.enqueue_many([new_job(bench.tenant, "noop") for _ in range(JOBS)])
        claims = await bench.jobs.claim("worker", ["noop"], limit=JOBS)
        await bench.jobs.settle_many([Settle(job_id=one.job.id, fence=one.fence, outcome=Done()) for one in claims])
        explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {SQL.preview_retention}"
        ((text,),) = await bench.store.database.read(bench.tenant, explain, bench.tenant, PREVIEW_JOBS_MAX)
        (plan,) = msgspec.json.decode(text)
        assert JOBS <= rows_of(plan["Plan"]) <= ROWS_PER_JOB_MAX * JOBS
