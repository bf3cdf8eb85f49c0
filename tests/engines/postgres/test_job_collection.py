"""Removing finished jobs concurrently with other calls: a job is removed completely or kept completely."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from ingot.engines.postgres import PostgresStore
from ingot.jobs import Done, Jobs, Settle
from ingot.kernel.clock import SystemClock
from tests.engines.postgres.interleaving import (
    COUNTS,
    NOW,
    Interleaving,
    Job,
    TransactionCall,
    check_job,
    make_call,
)
from tests.postgres import ACT_SQL, until_blocked

ENDED: Final = ["succeeded", "canceled", "canceled after a run"]
REMAINING_ROWS: Final = """
    SELECT 'job' FROM ingot.jobs WHERE id = $1
    UNION ALL SELECT 'ready' FROM ingot.ready WHERE id = $1
    UNION ALL SELECT 'canceled' FROM ingot.canceled WHERE id = $1
    UNION ALL SELECT 'outcome' FROM ingot.outcomes WHERE job = $1
    UNION ALL SELECT 'tag' FROM ingot.tags WHERE job = $1
    UNION ALL SELECT 'key' FROM ingot.dedupe_keys WHERE job = $1
    UNION ALL SELECT 'key' FROM ingot.idempotency_keys WHERE job = $1
"""
# With this clock, sessions that set `ingot.waits` pause until the advisory lock is released.
WAITING_CLOCK: Final = f"""
    CREATE OR REPLACE FUNCTION ingot.clock() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
    BEGIN
        IF current_setting('ingot.waits', true) = 'yes' THEN
            PERFORM pg_advisory_xact_lock_shared(99);
        END IF;
        RETURN {NOW};
    END
    $$
"""


async def set_retention_to_zero(interleaving: Interleaving) -> None:
    """Set the retention of the tenant to zero."""
    limits = '{"retention_seconds": 0}'
    await interleaving.owner.execute(
        f"SELECT ingot.change_tenant($1, NULL, NULL, NULL, $2, {ACT_SQL})", interleaving.tenant, limits
    )


async def is_removed(interleaving: Interleaving, job: Job) -> bool:
    """Return True if a job has no rows and no counts; otherwise check that it is complete."""
    remaining = [row[0] for row in await interleaving.owner.fetch(REMAINING_ROWS, job.id)]
    if "job" in remaining:
        await check_job(interleaving.owner, job)
        return False
    assert (remaining, await interleaving.owner.fetch(COUNTS, job.type)) == ([], [])
    return True


async def collect(interleaving: Interleaving) -> int:
    (row,) = await interleaving.first.fetch("SELECT * FROM ingot.collect_jobs(1000)")
    return int(row["removed"])


@pytest.mark.parametrize("state", ENDED)
@pytest.mark.parametrize("commits", [True, False])
async def test_a_retry_during_a_removal_fails_if_the_removal_commits(
    interleaving: Interleaving,
    state: str,
    commits: bool,
) -> None:
    await set_retention_to_zero(interleaving)
    job = await interleaving.make_job(state)
    calls = [TransactionCall(interleaving.first, "collect", job), TransactionCall(interleaving.second, "retry", job)]
    await interleaving.run_overlapping(*calls, commits=commits)
    assert calls[1].error_state == ("IN001" if commits else None)
    assert await is_removed(interleaving, job) == commits
    assert await collect(interleaving) == 0
    assert await is_removed(interleaving, job) == commits


@pytest.mark.parametrize("state", ENDED)
@pytest.mark.parametrize("commits", [True, False])
async def test_a_removal_during_a_retry_keeps_the_job(
    interleaving: Interleaving,
    state: str,
    commits: bool,
) -> None:
    await set_retention_to_zero(interleaving)
    job = await interleaving.make_job(state)
    calls = [TransactionCall(interleaving.first, "retry", job), TransactionCall(interleaving.second, "collect", job)]
    await interleaving.run_overlapping(*calls, commits=commits)
    assert [row["removed"] for row in calls[1].rows] == [0]
    assert not await is_removed(interleaving, job)
    # After a rolled-back retry the next pass removes the job; after a committed one it has to finish again first.
    assert await collect(interleaving) == (0 if commits else 1)
    if commits:
        assert not await is_removed(interleaving, job)
        (claimed,) = await make_call(interleaving.first, "claim", job)
        job.fence = claimed["fence"]
        await make_call(interleaving.first, "complete", job)
        assert await collect(interleaving) == 1
    assert await is_removed(interleaving, job)


async def test_a_retry_committed_during_a_removal_keeps_the_job(interleaving: Interleaving) -> None:
    await set_retention_to_zero(interleaving)
    job = await interleaving.make_job("succeeded")
    interleaving.database.is_altered = True
    await interleaving.owner.execute(WAITING_CLOCK)
    await interleaving.owner.execute("SELECT pg_advisory_lock(99)")
    await interleaving.second.execute("SET ingot.waits = 'yes'")
    collecting = asyncio.ensure_future(make_call(interleaving.second, "collect", job))
    await until_blocked(interleaving.owner, interleaving.owner)
    await make_call(interleaving.first, "retry", job)
    await interleaving.owner.execute("SELECT pg_advisory_unlock(99)")
    assert [row["removed"] for row in await collecting] == [0]
    assert (await check_job(interleaving.owner, job))["status"] == "queued"


@pytest.mark.parametrize("first", ["collect", "label"])
@pytest.mark.parametrize("commits", [True, False])
async def test_a_removed_job_leaves_no_tags(interleaving: Interleaving, first: str, commits: bool) -> None:
    await set_retention_to_zero(interleaving)
    job = await interleaving.make_job("succeeded")
    second = "label" if first == "collect" else "collect"
    calls = [TransactionCall(interleaving.first, first, job), TransactionCall(interleaving.second, second, job)]
    await interleaving.run_overlapping(*calls, commits=commits)
    assert await is_removed(interleaving, job) == (first == "collect" and commits)
    assert calls[1].error_state == ("IN001" if first == "collect" and commits else None)
    await collect(interleaving)
    assert await is_removed(interleaving, job)


@pytest.mark.parametrize("commits", [True, False])
async def test_concurrent_removals_do_not_wait_for_each_other(interleaving: Interleaving, commits: bool) -> None:
    await set_retention_to_zero(interleaving)
    job = await interleaving.make_job("succeeded")
    calls = [TransactionCall(interleaving.first, "collect", job), TransactionCall(interleaving.second, "collect", job)]
    await calls[0].start()
    await calls[1].start()
    await calls[1].end(commits=True)
    await calls[0].end(commits=commits)
    assert [[row["removed"] for row in call.rows] for call in calls] == [[1] if commits else [], [0]]
    assert await collect(interleaving) == (0 if commits else 1)
    assert await is_removed(interleaving, job)


async def test_a_key_of_a_job_removed_during_the_call_creates_a_new_job(interleaving: Interleaving) -> None:
    await set_retention_to_zero(interleaving)
    store = await PostgresStore.open(interleaving.server_url, clock=SystemClock(), lease_seconds=180)
    try:
        jobs = Jobs(store, lease_seconds=180)
        old = (await jobs.enqueue(interleaving.tenant, "noop", 1, idempotency_key="key")).job
        (claim,) = await jobs.claim("worker", ["noop"])
        await jobs.settle_many([Settle(job_id=claim.job.id, fence=claim.fence, outcome=Done())])
        await interleaving.owner.execute("BEGIN; LOCK TABLE ingot.outcomes IN ACCESS EXCLUSIVE MODE")
        enqueuing = asyncio.ensure_future(jobs.enqueue(interleaving.tenant, "noop", 1, idempotency_key="key"))
        await until_blocked(interleaving.owner, interleaving.owner)
        (row,) = await interleaving.owner.fetch("SELECT * FROM ingot.collect_jobs(10)")
        await interleaving.owner.execute("COMMIT")
        new = await enqueuing
        assert (row["removed"], new.created, new.job.id != old.id) == (1, True, True)
    finally:
        await store.close()
