"""Who removes finished jobs meets others at them: a job goes whole, or lives on whole, whoever was first."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from ingot.engines.postgres import PostgresStore
from ingot.jobs import Done, Jobs, Settle
from ingot.kernel.clock import SystemClock
from tests.engines.postgres.test_interleavings import (
    COUNTS,
    NOW,
    Job,
    Party,
    Yard,
    check,
    cluster,  # noqa: F401 - a fixture
    make_call,
    yard,  # noqa: F401 - a fixture
)
from tests.postgres import AN_ACT

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


async def forget(yard: Yard) -> None:  # noqa: F811
    """Finished jobs of the tenant are not kept at all from now on."""
    limits = '{"retention_seconds": 0}'
    await yard.owner.execute(f"SELECT ingot.change_tenant($1, NULL, NULL, NULL, $2, {AN_ACT})", yard.tenant, limits)


async def is_gone(yard: Yard, job: Job) -> bool:  # noqa: F811
    """Whether nothing is left of a job, and nothing counts it; or else it must be whole."""
    left = [row[0] for row in await yard.owner.fetch(LEFT, job.id)]
    if "job" in left:
        await check(yard.owner, job)
        return False
    assert (left, await yard.owner.fetch(COUNTS, job.type)) == ([], [])
    return True


async def collect(yard: Yard) -> int:  # noqa: F811
    (row,) = await yard.first.fetch("SELECT * FROM ingot.collect(1000)")
    return int(row["removed"])


@pytest.mark.parametrize("state", ENDED)
@pytest.mark.parametrize("commits", [True, False])
async def test_a_retry_that_meets_a_removal_finds_the_job_or_does_not(
    yard: Yard,  # noqa: F811
    state: str,
    commits: bool,
) -> None:
    await forget(yard)
    job = await yard.make(state)
    parties = [Party(yard.first, "collect", job), Party(yard.second, "retry", job)]
    await yard.meet(*parties, commits=commits)
    assert parties[1].refused == ("IN001" if commits else None)
    assert await is_gone(yard, job) == commits
    assert await collect(yard) == 0
    assert await is_gone(yard, job) == commits


@pytest.mark.parametrize("state", ENDED)
@pytest.mark.parametrize("commits", [True, False])
async def test_a_removal_that_meets_a_retry_lets_the_job_be(
    yard: Yard,  # noqa: F811
    state: str,
    commits: bool,
) -> None:
    await forget(yard)
    job = await yard.make(state)
    parties = [Party(yard.first, "retry", job), Party(yard.second, "collect", job)]
    await yard.meet(*parties, commits=commits)
    assert [row["removed"] for row in parties[1].rows] == [0]
    assert not await is_gone(yard, job)
    # A retry that went back leaves a job for the next round; one that holds leaves it for when the job has ended again.
    assert await collect(yard) == (0 if commits else 1)
    if commits:
        assert not await is_gone(yard, job)
        (claimed,) = await make_call(yard.first, "claim", job)
        job.fence = claimed["fence"]
        await make_call(yard.first, "complete", job)
        assert await collect(yard) == 1
    assert await is_gone(yard, job)


async def test_a_retry_that_ends_while_a_removal_looks_saves_the_job(yard: Yard) -> None:  # noqa: F811
    await forget(yard)
    job = await yard.make("succeeded")
    await yard.owner.execute(WAITING_CLOCK)
    await yard.owner.execute("SELECT pg_advisory_lock(99)")
    await yard.second.execute("SET ingot.waits = 'yes'")
    collecting = asyncio.ensure_future(make_call(yard.second, "collect", job))
    waits = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"
    while not await yard.owner.fetchval(waits, yard.owner.get_server_pid()):
        pass
    await make_call(yard.first, "retry", job)
    await yard.owner.execute("SELECT pg_advisory_unlock(99)")
    assert [row["removed"] for row in await collecting] == [0]
    assert (await check(yard.owner, job))["status"] == "queued"


@pytest.mark.parametrize("first", ["collect", "label"])
@pytest.mark.parametrize("commits", [True, False])
async def test_a_job_that_goes_leaves_no_tags(yard: Yard, first: str, commits: bool) -> None:  # noqa: F811
    await forget(yard)
    job = await yard.make("succeeded")
    second = "label" if first == "collect" else "collect"
    parties = [Party(yard.first, first, job), Party(yard.second, second, job)]
    await yard.meet(*parties, commits=commits)
    assert await is_gone(yard, job) == (first == "collect" and commits)
    assert parties[1].refused == ("IN001" if first == "collect" and commits else None)
    await collect(yard)
    assert await is_gone(yard, job)


@pytest.mark.parametrize("commits", [True, False])
async def test_two_that_remove_do_not_wait_for_each_other(yard: Yard, commits: bool) -> None:  # noqa: F811
    await forget(yard)
    job = await yard.make("succeeded")
    parties = [Party(yard.first, "collect", job), Party(yard.second, "collect", job)]
    await parties[0].act()
    await parties[1].act()
    await parties[1].end(commits=True)
    await parties[0].end(commits=commits)
    assert [[row["removed"] for row in party.rows] for party in parties] == [[1] if commits else [], [0]]
    assert await collect(yard) == (0 if commits else 1)
    assert await is_gone(yard, job)


async def test_a_key_whose_job_is_removed_while_it_is_looked_at_makes_a_new_one(yard: Yard) -> None:  # noqa: F811
    await forget(yard)
    store = await PostgresStore.open(yard.server_url, clock=SystemClock(), lease_seconds=180)
    try:
        jobs = Jobs(store, lease_seconds=180)
        old = (await jobs.enqueue(yard.tenant, "noop", 1, idempotency_key="key")).job
        (claim,) = await jobs.claim("worker", ["noop"])
        await jobs.settle_many([Settle(job_id=claim.job.id, fence=claim.fence, outcome=Done())])
        await yard.owner.execute("BEGIN; LOCK TABLE ingot.outcomes IN ACCESS EXCLUSIVE MODE")
        asking = asyncio.ensure_future(jobs.enqueue(yard.tenant, "noop", 1, idempotency_key="key"))
        waits = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"
        while not await yard.owner.fetchval(waits, yard.owner.get_server_pid()):
            pass
        (row,) = await yard.owner.fetch("SELECT * FROM ingot.collect(10)")
        await yard.owner.execute("COMMIT")
        new = await asking
        assert (row["removed"], new.created, new.job.id != old.id) == (1, True, True)
    finally:
        await store.close()
