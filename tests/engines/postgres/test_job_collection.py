"""Who removes finished jobs meets others at them: a job goes whole, or lives on whole, whoever was first."""

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
    Job,
    Meeting,
    Party,
    check,
    make_call,
)
from tests.postgres import ACT_SQL, until_blocked

ENDED: Final = ["succeeded", "canceled", "canceled after a run"]
LEFT: Final = """
    SELECT 'job' FROM ingot.jobs WHERE id = $1
    UNION ALL SELECT 'ready' FROM ingot.ready WHERE id = $1
    UNION ALL SELECT 'canceled' FROM ingot.canceled WHERE id = $1
    UNION ALL SELECT 'outcome' FROM ingot.outcomes WHERE job = $1
    UNION ALL SELECT 'tag' FROM ingot.tags WHERE job = $1
    UNION ALL SELECT 'key' FROM ingot.dedupe_keys WHERE job = $1
    UNION ALL SELECT 'key' FROM ingot.idempotency_keys WHERE job = $1
"""
# The clock stops whoever is told to wait, until the lock is free.
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


async def forget(meeting: Meeting) -> None:
    """Finished jobs of the tenant are not kept at all from now on."""
    limits = '{"retention_seconds": 0}'
    await meeting.owner.execute(
        f"SELECT ingot.change_tenant($1, NULL, NULL, NULL, $2, {ACT_SQL})", meeting.tenant, limits
    )


async def is_gone(meeting: Meeting, job: Job) -> bool:
    """Whether nothing is left of a job, and nothing counts it; or else it must be whole."""
    left = [row[0] for row in await meeting.owner.fetch(LEFT, job.id)]
    if "job" in left:
        await check(meeting.owner, job)
        return False
    assert (left, await meeting.owner.fetch(COUNTS, job.type)) == ([], [])
    return True


async def collect(meeting: Meeting) -> int:
    (row,) = await meeting.first.fetch("SELECT * FROM ingot.collect_jobs(1000)")
    return int(row["removed"])


@pytest.mark.parametrize("state", ENDED)
@pytest.mark.parametrize("commits", [True, False])
async def test_a_retry_that_meets_a_removal_finds_the_job_or_does_not(
    meeting: Meeting,
    state: str,
    commits: bool,
) -> None:
    await forget(meeting)
    job = await meeting.make(state)
    parties = [Party(meeting.first, "collect", job), Party(meeting.second, "retry", job)]
    await meeting.meet(*parties, commits=commits)
    assert parties[1].refused == ("IN001" if commits else None)
    assert await is_gone(meeting, job) == commits
    assert await collect(meeting) == 0
    assert await is_gone(meeting, job) == commits


@pytest.mark.parametrize("state", ENDED)
@pytest.mark.parametrize("commits", [True, False])
async def test_a_removal_that_meets_a_retry_lets_the_job_be(
    meeting: Meeting,
    state: str,
    commits: bool,
) -> None:
    await forget(meeting)
    job = await meeting.make(state)
    parties = [Party(meeting.first, "retry", job), Party(meeting.second, "collect", job)]
    await meeting.meet(*parties, commits=commits)
    assert [row["removed"] for row in parties[1].rows] == [0]
    assert not await is_gone(meeting, job)
    # A retry that went back leaves a job for the next round; one that holds leaves it for when the job has ended again.
    assert await collect(meeting) == (0 if commits else 1)
    if commits:
        assert not await is_gone(meeting, job)
        (claimed,) = await make_call(meeting.first, "claim", job)
        job.fence = claimed["fence"]
        await make_call(meeting.first, "complete", job)
        assert await collect(meeting) == 1
    assert await is_gone(meeting, job)


async def test_a_retry_that_ends_while_a_removal_looks_saves_the_job(meeting: Meeting) -> None:
    await forget(meeting)
    job = await meeting.make("succeeded")
    meeting.database.is_altered = True
    await meeting.owner.execute(WAITING_CLOCK)
    await meeting.owner.execute("SELECT pg_advisory_lock(99)")
    await meeting.second.execute("SET ingot.waits = 'yes'")
    collecting = asyncio.ensure_future(make_call(meeting.second, "collect", job))
    await until_blocked(meeting.owner, meeting.owner)
    await make_call(meeting.first, "retry", job)
    await meeting.owner.execute("SELECT pg_advisory_unlock(99)")
    assert [row["removed"] for row in await collecting] == [0]
    assert (await check(meeting.owner, job))["status"] == "queued"


@pytest.mark.parametrize("first", ["collect", "label"])
@pytest.mark.parametrize("commits", [True, False])
async def test_a_job_that_goes_leaves_no_tags(meeting: Meeting, first: str, commits: bool) -> None:
    await forget(meeting)
    job = await meeting.make("succeeded")
    second = "label" if first == "collect" else "collect"
    parties = [Party(meeting.first, first, job), Party(meeting.second, second, job)]
    await meeting.meet(*parties, commits=commits)
    assert await is_gone(meeting, job) == (first == "collect" and commits)
    assert parties[1].refused == ("IN001" if first == "collect" and commits else None)
    await collect(meeting)
    assert await is_gone(meeting, job)


@pytest.mark.parametrize("commits", [True, False])
async def test_two_that_remove_do_not_wait_for_each_other(meeting: Meeting, commits: bool) -> None:
    await forget(meeting)
    job = await meeting.make("succeeded")
    parties = [Party(meeting.first, "collect", job), Party(meeting.second, "collect", job)]
    await parties[0].act()
    await parties[1].act()
    await parties[1].end(commits=True)
    await parties[0].end(commits=commits)
    assert [[row["removed"] for row in party.rows] for party in parties] == [[1] if commits else [], [0]]
    assert await collect(meeting) == (0 if commits else 1)
    assert await is_gone(meeting, job)


async def test_a_key_whose_job_is_removed_while_it_is_looked_at_makes_a_new_one(meeting: Meeting) -> None:
    await forget(meeting)
    store = await PostgresStore.open(meeting.server_url, clock=SystemClock(), lease_seconds=180)
    try:
        jobs = Jobs(store, lease_seconds=180)
        old = (await jobs.enqueue(meeting.tenant, "noop", 1, idempotency_key="key")).job
        (claim,) = await jobs.claim("worker", ["noop"])
        await jobs.settle_many([Settle(job_id=claim.job.id, fence=claim.fence, outcome=Done())])
        await meeting.owner.execute("BEGIN; LOCK TABLE ingot.outcomes IN ACCESS EXCLUSIVE MODE")
        asking = asyncio.ensure_future(jobs.enqueue(meeting.tenant, "noop", 1, idempotency_key="key"))
        await until_blocked(meeting.owner, meeting.owner)
        (row,) = await meeting.owner.fetch("SELECT * FROM ingot.collect_jobs(10)")
        await meeting.owner.execute("COMMIT")
        new = await asking
        assert (row["removed"], new.created, new.job.id != old.id) == (1, True, True)
    finally:
        await store.close()
