"""A removed job leaves no rows in the SQLite file, and a later job with its number is not confused with it."""

from __future__ import annotations

from pathlib import Path

from ingot.identity import Limits
from ingot.jobs import Definition, Job, JobStatus
from ingot.kernel.clock import ManualClock
from tests.factories import Bench, open_bench
from tests.faults.sqlite_rules import broken_rules

HOUR = 3600.0
JOB_TABLES = ["jobs", "states", "idempotency_keys", "tags", "attempts", "outcomes", "endings"]


async def finish_again(bench: Bench, job: Job) -> None:
    """Retry a job and complete it."""
    await bench.jobs.retry(bench.tenant, job.id)
    (claim,) = await bench.jobs.claim("worker", [job.type])
    await bench.jobs.complete(claim)


async def test_a_removed_job_leaves_only_its_history_entry(tmp_path: Path) -> None:
    async with open_bench("sqlite", tmp_path) as bench:
        await bench.tenants.change(bench.tenant, limits=Limits(retention_seconds=HOUR))
        await bench.jobs.define(Definition(type="recorded", keep_history=True))
        for type in ("noop", "recorded"):
            for status in (JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED):
                key = f"{type}-{status}"
                job = await bench.make_job_in(status, type, tags=["a", "b"], idempotency_key=key, dedupe_key=key)
                await finish_again(bench, job)
        bench.clock.advance(seconds=HOUR)
        assert (await bench.jobs.collect(7)).more
        connection = bench.sqlite.connection
        assert broken_rules(connection) == []
        while (await bench.jobs.collect(2)).more:
            pass
        assert broken_rules(connection) == []
        remaining = {name: connection.execute(f"SELECT count(*) FROM {name}").get for name in JOB_TABLES}
        assert remaining == dict.fromkeys(JOB_TABLES, 0)
        assert connection.execute("SELECT count(*) FROM history").get == 3


async def test_a_job_with_the_number_of_a_removed_one_is_not_removed(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench("sqlite", tmp_path, clock) as bench:
        await bench.jobs.define(Definition(type="goes", retention_seconds=HOUR))
        await finish_again(bench, await bench.make_job_in(JobStatus.SUCCEEDED, "goes"))
        clock.advance(seconds=HOUR)
        collected = await bench.jobs.collect(1)
        assert (collected.removed, collected.more) == (1, True)  # The job finished twice, so one ending still names it.
    async with open_bench("sqlite", tmp_path, clock) as bench:
        stays = await bench.make_job_in(JobStatus.SUCCEEDED, "stays")
        clock.advance(seconds=HOUR)
        assert (await bench.jobs.collect()).removed == 0
        assert (await bench.reload(stays)).status is JobStatus.SUCCEEDED
