"""Two parties at one job: in whatever order they meet, the job stays whole.

One party has done its part and has not said whether it holds; the other begins, and waits or does not; then the first
commits or goes back. Every ordered pair of calls is tried on a job in every state.
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
    Meeting,
    Party,
    check,
    claim,
    events_of,
)
from tests.postgres import until_blocked


async def check_answers(owner: Raw, parties: list[Party]) -> None:
    """What was answered and committed is so."""
    job = parties[0].job
    names = {news.name for news in await events_of(owner, job)}
    requested = any(news.cancel_requested for news in await events_of(owner, job))
    done = {party.call for party in parties if party.refused is None and party.holds}
    assert "cancel" not in done or "job.canceled" in names or requested
    assert "retry" not in done or "job.retried" in names
    assert "change" not in done or "job.updated" in names
    fences = {row["fence"] for row in await owner.fetch(ATTEMPTS, job.id)}
    claimed = [row["fence"] for party in parties if party.call == "claim" for row in party.rows]
    assert len(set(claimed)) == len(claimed)
    assert set(claimed) <= fences
    ended = [row["status"] for party in parties if party.call in SETTLES for row in party.rows]
    assert len(ended) <= 1
    if ended:
        query = "SELECT status_after FROM ingot.outcomes WHERE job = $1 AND fence = $2"
        assert await owner.fetchval(query, job.id, job.fence) == ended[0]


SETTLES: Final = ("complete", "fail", "release", "sweep")


@pytest.mark.parametrize("second", CALLS)
@pytest.mark.parametrize("first", CALLS)
async def test_a_job_stays_whole_whoever_meets_at_it(meeting: Meeting, first: str, second: str) -> None:
    for state in STATES:
        for commits in (True, False):
            job = await meeting.make(state)
            await check(meeting.owner, job)
            parties = [Party(meeting.first, first, job), Party(meeting.second, second, job)]
            await meeting.meet(*parties, commits=commits)
            try:
                await check(meeting.owner, job)
                await check_answers(meeting.owner, parties)
            except AssertionError as error:
                error.add_note(f"a job that is {state}: {first} {'commits' if commits else 'goes back'}, {second}")
                raise


async def test_of_two_that_want_a_job_one_gets_it(meeting: Meeting) -> None:
    for commits in (True, False):
        job = await meeting.make("ready")
        parties = [Party(meeting.first, "claim", job), Party(meeting.second, "claim", job)]
        await meeting.meet(*parties, commits=commits)
        assert [len(party.rows) for party in parties] == [int(commits), 0]


@pytest.mark.parametrize(("first", "second"), [("complete", "sweep"), ("sweep", "complete"), ("fail", "complete")])
async def test_of_two_that_end_an_attempt_one_does(meeting: Meeting, first: str, second: str) -> None:
    for commits in (True, False):
        job = await meeting.make("running")
        parties = [Party(meeting.first, first, job), Party(meeting.second, second, job)]
        await meeting.meet(*parties, commits=commits)
        assert [len(party.rows) for party in parties] == ([1, 0] if commits else [0, 1])


async def test_a_renewed_lease_is_not_swept(meeting: Meeting) -> None:
    job = await meeting.make("running")
    parties = [Party(meeting.first, "renew", job), Party(meeting.second, "sweep", job)]
    await meeting.meet(*parties, commits=True)
    assert (len(parties[0].rows), parties[1].rows) == (1, [])
    assert (await check(meeting.owner, job))["status"] == "running"


@pytest.mark.parametrize("outcome", ["fail", "release", "sweep"])
async def test_a_cancel_that_was_first_is_obeyed(meeting: Meeting, outcome: str) -> None:
    job = await meeting.make("running")
    await meeting.meet(Party(meeting.first, "cancel", job), Party(meeting.second, outcome, job), commits=True)
    row = await check(meeting.owner, job)
    assert (row["status"], row["failures"], row["crashes"]) == ("canceled", 0, 0)


async def test_a_retry_that_meets_another_is_refused(meeting: Meeting) -> None:
    job = await meeting.make("succeeded")
    parties = [Party(meeting.first, "retry", job), Party(meeting.second, "retry", job)]
    await meeting.meet(*parties, commits=True)
    assert [party.refused for party in parties] == [None, "IN003"]


async def test_a_retry_that_loses_its_dedupe_key_is_refused_by_its_name(meeting: Meeting) -> None:
    job = await meeting.make("succeeded")
    store = await PostgresStore.open(meeting.server_url, clock=SystemClock(), lease_seconds=180)
    try:
        await meeting.first.execute("BEGIN")
        await meeting.first.fetch(ENQUEUE, new_id(), meeting.tenant, "other", 0, f"key-{job.id}")
        retrying = asyncio.ensure_future(store.run(RetryJob(tenant=meeting.tenant, job_id=job.id)))
        await until_blocked(meeting.owner, meeting.first, retrying)
        await meeting.first.execute("COMMIT")
        with pytest.raises(DuplicateJob):
            await retrying
    finally:
        await store.close()


async def test_a_job_in_two_places_is_noticed(meeting: Meeting) -> None:
    job = await meeting.make("running")
    change = meeting.owner.transaction()
    await change.start()
    await meeting.owner.execute(
        "INSERT INTO ingot.ready SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts,"
        " failures, crashes, max_attempts, fence, told_at FROM ingot.leases WHERE id = $1",
        job.id,
    )
    with pytest.raises(AssertionError, match="it is in"):
        await check(meeting.owner, job)
    await change.rollback()
    await check(meeting.owner, job)


# -- claims of many jobs ------------------------------------------------------------------------------------


async def fill(meeting: Meeting, types: list[str], count: int) -> list[str]:
    """Ready jobs, spread over types."""
    ids = [new_id() for _ in range(count)]
    for place, job_id in enumerate(ids):
        await meeting.first.fetch(ENQUEUE, job_id, meeting.tenant, types[place % len(types)], 0, None)
    return ids


@pytest.mark.parametrize("limits", [(4, 8), (10, 1), (1, 10), (5, 5), (9, 9)])
@pytest.mark.parametrize("commits", [True, False])
async def test_claims_of_ten_jobs_pass_each_other_without_waiting(
    meeting: Meeting, limits: tuple[int, int], commits: bool
) -> None:
    ids = await fill(meeting, ["noop"], 10)
    await meeting.second.execute("SET lock_timeout = '1ms'")  # Waiting for anybody is an error.
    await meeting.first.execute("BEGIN")
    first = [row["id"] for row in await claim(meeting.first, meeting, ["noop"], [limits[0]])]
    second = [row["id"] for row in await claim(meeting.second, meeting, ["noop"], [limits[1]])]
    assert first == ids[: limits[0]]
    assert second == ids[limits[0] :][: limits[1]]
    await meeting.first.execute("COMMIT" if commits else "ROLLBACK")
    rest = [row["id"] for row in await claim(meeting.second, meeting, ["noop"], [100])]
    taken = (first if commits else []) + second
    assert rest == [job_id for job_id in ids if job_id not in taken]


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
async def test_a_claim_keeps_to_its_limit_under_every_plan(
    meeting: Meeting, plan: dict[str, str], analyzed: bool
) -> None:
    types = [f"type-{number}" for number in range(6)]
    ids = await fill(meeting, types, 60)
    if analyzed:
        await meeting.owner.execute("ANALYZE")
    meeting.database.is_altered = True
    for name, value in plan.items():
        await meeting.owner.execute(f"ALTER FUNCTION ingot.claim SET {name} = '{value}'")
    claimed: list[Record] = []
    for limits in ([1], [3, 2], [7, 1, 1], [5], [4, 4], [10]):
        pair: tuple[list[Record], list[Record]] = await asyncio.gather(
            claim(meeting.first, meeting, types, limits), claim(meeting.second, meeting, types, limits)
        )
        for rows in pair:
            each = Counter(row["claimer"] for row in rows)
            assert all(each[place] <= limit for place, limit in enumerate(limits, start=1))
            claimed += rows
    claimed += await claim(meeting.first, meeting, types, [100])
    assert sorted(row["id"] for row in claimed) == sorted(ids)
    answered = {(row["id"], row["fence"]) for row in claimed}
    held = await meeting.owner.fetch("SELECT id::text, fence FROM ingot.leases")
    assert {tuple(row) for row in held} == answered
    assert await meeting.owner.fetchval("SELECT count(*) FROM ingot.ready") == 0


async def test_a_claim_that_names_a_lane_twice_hands_out_no_job_twice(meeting: Meeting) -> None:
    ids = await fill(meeting, ["noop"], 10)
    taken: list[Any] = []
    while rows := await claim(meeting.first, meeting, ["noop", "noop"], [2, 2]):
        assert len(rows) <= 4
        taken += [row["id"] for row in rows]
    assert sorted(taken) == sorted(ids)
