"""Two overlapping calls about one job leave it consistent in any order.

The first call has run and not committed; the second call starts, and may wait; then the first commits or rolls back.
Every ordered pair of calls is tried on a job in every state.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

import pytest

from ingot.engines.postgres import PostgresStore
from ingot.engines.postgres.connection import PlainConnection as Raw
from ingot.engines.postgres.connection import Record
from ingot.jobs.errors import DuplicateJob
from ingot.jobs.ports import RetryJob
from ingot.kernel.clock import SystemClock
from ingot.kernel.ids import new_id
from tests.engines.postgres.interleaving import (
    ATTEMPTS,
    CALLS,
    ENQUEUE,
    STATES,
    Interleaving,
    TransactionCall,
    check_job,
    claim,
    events_of,
)
from tests.postgres import until_blocked


async def check_results(owner: Raw, calls: list[TransactionCall]) -> None:
    """Check that the results of committed calls are stored."""
    job = calls[0].job
    names = {entry.name for entry in await events_of(owner, job)}
    requested = any(entry.cancel_requested for entry in await events_of(owner, job))
    done = {each.call for each in calls if each.error_state is None and each.is_committed}
    assert "cancel" not in done or "job.canceled" in names or requested
    assert "retry" not in done or "job.retried" in names
    assert "change" not in done or "job.updated" in names
    fences = {row["fence"] for row in await owner.fetch(ATTEMPTS, job.id)}
    claimed = [row["fence"] for each in calls if each.call == "claim" for row in each.rows]
    assert len(set(claimed)) == len(claimed)
    assert set(claimed) <= fences
    ended = [row["status"] for each in calls if each.call in SETTLES for row in each.rows]
    assert len(ended) <= 1
    if ended:
        query = "SELECT status_after FROM ingot.outcomes WHERE job = $1 AND fence = $2"
        assert await owner.fetchval(query, job.id, job.fence) == ended[0]


SETTLES: Final = ("complete", "fail", "release", "sweep")


@pytest.mark.parametrize("second", CALLS)
@pytest.mark.parametrize("first", CALLS)
async def test_any_two_overlapping_calls_leave_the_job_consistent(
    interleaving: Interleaving, first: str, second: str
) -> None:
    for state in STATES:
        for commits in (True, False):
            job = await interleaving.make_job(state)
            await check_job(interleaving.owner, job)
            calls = [TransactionCall(interleaving.first, first, job), TransactionCall(interleaving.second, second, job)]
            await interleaving.run_overlapping(*calls, commits=commits)
            try:
                await check_job(interleaving.owner, job)
                await check_results(interleaving.owner, calls)
            except AssertionError as error:
                error.add_note(f"a job that is {state}: {first} {'commits' if commits else 'rolls back'}, {second}")
                raise


async def test_only_one_of_two_overlapping_claims_gets_the_job(interleaving: Interleaving) -> None:
    for commits in (True, False):
        job = await interleaving.make_job("ready")
        calls = [TransactionCall(interleaving.first, "claim", job), TransactionCall(interleaving.second, "claim", job)]
        await interleaving.run_overlapping(*calls, commits=commits)
        assert [len(each.rows) for each in calls] == [int(commits), 0]


@pytest.mark.parametrize(("first", "second"), [("complete", "sweep"), ("sweep", "complete"), ("fail", "complete")])
async def test_only_one_of_two_overlapping_calls_ends_the_attempt(
    interleaving: Interleaving, first: str, second: str
) -> None:
    for commits in (True, False):
        job = await interleaving.make_job("running")
        calls = [TransactionCall(interleaving.first, first, job), TransactionCall(interleaving.second, second, job)]
        await interleaving.run_overlapping(*calls, commits=commits)
        assert [len(each.rows) for each in calls] == ([1, 0] if commits else [0, 1])


async def test_a_renewed_lease_is_not_swept(interleaving: Interleaving) -> None:
    job = await interleaving.make_job("running")
    calls = [TransactionCall(interleaving.first, "renew", job), TransactionCall(interleaving.second, "sweep", job)]
    await interleaving.run_overlapping(*calls, commits=True)
    assert (len(calls[0].rows), calls[1].rows) == (1, [])
    assert (await check_job(interleaving.owner, job))["status"] == "running"


@pytest.mark.parametrize("outcome", ["fail", "release", "sweep"])
async def test_a_settle_after_an_overlapping_cancel_cancels_the_job(interleaving: Interleaving, outcome: str) -> None:
    job = await interleaving.make_job("running")
    await interleaving.run_overlapping(
        TransactionCall(interleaving.first, "cancel", job),
        TransactionCall(interleaving.second, outcome, job),
        commits=True,
    )
    row = await check_job(interleaving.owner, job)
    assert (row["status"], row["failures"], row["crashes"]) == ("canceled", 0, 0)


async def test_the_second_of_two_overlapping_retries_is_refused(interleaving: Interleaving) -> None:
    job = await interleaving.make_job("succeeded")
    calls = [TransactionCall(interleaving.first, "retry", job), TransactionCall(interleaving.second, "retry", job)]
    await interleaving.run_overlapping(*calls, commits=True)
    assert [each.error_state for each in calls] == [None, "IN003"]


async def test_a_retry_that_loses_its_dedupe_key_raises_duplicate_job(interleaving: Interleaving) -> None:
    job = await interleaving.make_job("succeeded")
    store = await PostgresStore.open(interleaving.server_url, clock=SystemClock(), lease_seconds=180)
    try:
        await interleaving.first.execute("BEGIN")
        await interleaving.first.fetch(ENQUEUE, new_id(), interleaving.tenant, "other", 0, f"key-{job.id}")
        retrying = asyncio.ensure_future(store.run(RetryJob(tenant=interleaving.tenant, job_id=job.id)))
        await until_blocked(interleaving.owner, interleaving.first, retrying)
        await interleaving.first.execute("COMMIT")
        with pytest.raises(DuplicateJob):
            await retrying
    finally:
        await store.close()


async def test_a_job_in_two_tables_is_detected(interleaving: Interleaving) -> None:
    job = await interleaving.make_job("running")
    transaction = interleaving.owner.transaction()
    await transaction.start()
    await interleaving.owner.execute(
        "INSERT INTO ingot.ready SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts,"
        " failures, crashes, max_attempts, fence, told_at FROM ingot.leases WHERE id = $1",
        job.id,
    )
    with pytest.raises(AssertionError, match="the job is in"):
        await check_job(interleaving.owner, job)
    await transaction.rollback()
    await check_job(interleaving.owner, job)


# -- claims of many jobs ------------------------------------------------------------------------------------


async def make_ready_jobs(interleaving: Interleaving, types: list[str], count: int) -> list[str]:
    """Make ready jobs, distributed over types."""
    ids = [new_id() for _ in range(count)]
    for index, job_id in enumerate(ids):
        await interleaving.first.fetch(ENQUEUE, job_id, interleaving.tenant, types[index % len(types)], 0, None)
    return ids


@pytest.mark.parametrize("limits", [(4, 8), (10, 1), (1, 10), (5, 5), (9, 9)])
@pytest.mark.parametrize("commits", [True, False])
async def test_overlapping_claims_get_different_jobs_without_waiting(
    interleaving: Interleaving, limits: tuple[int, int], commits: bool
) -> None:
    ids = await make_ready_jobs(interleaving, ["noop"], 10)
    await interleaving.second.execute("SET lock_timeout = '1ms'")  # Waiting for a lock is an error.
    await interleaving.first.execute("BEGIN")
    first = [row["id"] for row in await claim(interleaving.first, interleaving, ["noop"], [limits[0]])]
    second = [row["id"] for row in await claim(interleaving.second, interleaving, ["noop"], [limits[1]])]
    assert first == ids[: limits[0]]
    assert second == ids[limits[0] :][: limits[1]]
    await interleaving.first.execute("COMMIT" if commits else "ROLLBACK")
    remaining = [row["id"] for row in await claim(interleaving.second, interleaving, ["noop"], [100])]
    claimed_ids = (first if commits else []) + second
    assert remaining == [job_id for job_id in ids if job_id not in claimed_ids]


PLANS: Final = [
    {},
    {"enable_nestloop": "off", "enable_hashjoin": "on"},
    {"enable_nestloop": "off", "enable_mergejoin": "on"},
    {"enable_indexscan": "off", "enable_indexonlyscan": "off", "enable_seqscan": "on"},
    {"enable_indexscan": "off", "enable_indexonlyscan": "off", "enable_bitmapscan": "on"},
    {"enable_nestloop": "off", "enable_hashjoin": "on", "enable_indexscan": "off", "enable_seqscan": "on"},
    {"enable_hashjoin": "on", "enable_mergejoin": "on", "enable_seqscan": "on", "enable_bitmapscan": "on"},
    {"plan_cache_mode": "force_custom_plan", "enable_seqscan": "on", "enable_sort": "off"},
    {"enable_material": "off", "enable_memoize": "off", "enable_nestloop": "off", "enable_hashagg": "off"},
]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: ",".join(f"{name}={value}" for name, value in plan.items()))
@pytest.mark.parametrize("analyzed", [True, False])
async def test_a_claim_respects_its_limit_under_every_plan(
    interleaving: Interleaving, plan: dict[str, str], analyzed: bool
) -> None:
    types = [f"type-{number}" for number in range(6)]
    ids = await make_ready_jobs(interleaving, types, 60)
    if analyzed:
        await interleaving.owner.execute("ANALYZE")
    interleaving.database.is_altered = True
    for name, value in plan.items():
        await interleaving.owner.execute(f"ALTER FUNCTION ingot.claim SET {name} = '{value}'")
    claimed: list[Record] = []
    for limits in ([1], [3, 2], [7, 1, 1], [5], [4, 4], [10]):
        pair: tuple[list[Record], list[Record]] = await asyncio.gather(
            claim(interleaving.first, interleaving, types, limits),
            claim(interleaving.second, interleaving, types, limits),
        )
        for rows in pair:
            each = Counter(row["claimer"] for row in rows)
            assert all(each[index] <= limit for index, limit in enumerate(limits, start=1))
            claimed += rows
    claimed += await claim(interleaving.first, interleaving, types, [100])
    assert sorted(row["id"] for row in claimed) == sorted(ids)
    returned = {(row["id"], row["fence"]) for row in claimed}
    leases = await interleaving.owner.fetch("SELECT id::text, fence FROM ingot.leases")
    assert {tuple(row) for row in leases} == returned
    assert await interleaving.owner.fetchval("SELECT count(*) FROM ingot.ready") == 0


async def test_a_claim_that_names_a_lane_twice_returns_each_job_once(interleaving: Interleaving) -> None:
    ids = await make_ready_jobs(interleaving, ["noop"], 10)
    claimed_ids: list[Any] = []
    while rows := await claim(interleaving.first, interleaving, ["noop", "noop"], [2, 2]):
        assert len(rows) <= 4
        claimed_ids += [row["id"] for row in rows]
    assert sorted(claimed_ids) == sorted(ids)
