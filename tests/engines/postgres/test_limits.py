"""Two parties at one limit: what one has begun counts for the other, whether it holds or goes back."""

from __future__ import annotations

import asyncio

import pytest

from ingot.engines.postgres.connection import Record
from ingot.kernel.ids import new_id
from tests.engines.postgres.interleaving import (
    ENQUEUE,
    NIL,
    Meeting,
    claim,
)
from tests.postgres import ACT_SQL, until_blocked

CHANGE = f"SELECT ingot.change_tenant($1, NULL, NULL, NULL, $2, {ACT_SQL})"
DEFINE = f"""SELECT ingot.put_record('definition', $1, 'noop', $2, NULL, NULL, 100, {ACT_SQL}, 'definition.put',
    'definition/noop')"""


async def limit(meeting: Meeting, kind: str) -> None:
    """Let one job run at a time."""
    if kind == "tenant":
        await meeting.owner.execute(CHANGE, meeting.tenant, '{"max_running_jobs": 1}')
    else:
        await meeting.owner.execute(DEFINE, NIL if kind == "type" else meeting.tenant, '{"max_running": 1}')


@pytest.mark.parametrize("limits", ["{}", '{"max_unfinished_jobs": 5, "rate": 1}'])
async def test_nothing_is_limited_that_has_no_limit(meeting: Meeting, limits: str) -> None:
    await meeting.owner.execute(CHANGE, meeting.tenant, limits)
    assert not await meeting.owner.fetchval("SELECT ingot.is_bounded()")
    await meeting.owner.execute(CHANGE, meeting.tenant, '{"max_running_jobs": 1099511627776}')
    assert await meeting.owner.fetchval("SELECT ingot.is_bounded()")


def jobs(rows: list[Record]) -> list[str]:
    """The jobs in an answer, without what it tells of rooms."""
    return [row["id"] for row in rows if row[0]]


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("kind", ["tenant", "type", "type of a tenant"])
async def test_a_claim_under_way_leaves_no_room_for_another(meeting: Meeting, kind: str, commits: bool) -> None:
    await limit(meeting, kind)
    for _ in range(2):
        await meeting.first.fetch(ENQUEUE, new_id(), meeting.tenant, "noop", 0, None)
    await meeting.first.execute("BEGIN")
    assert len(jobs(await claim(meeting.first, meeting, ["noop"], [2]))) == 1
    assert jobs(await claim(meeting.second, meeting, ["noop"], [2])) == []
    await meeting.first.execute("COMMIT" if commits else "ROLLBACK")
    assert len(jobs(await claim(meeting.second, meeting, ["noop"], [2]))) == (0 if commits else 1)
    assert await meeting.owner.fetchval("SELECT count(*) FROM ingot.leases") == 1


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("limits", ['{"max_unfinished_jobs": 1}', '{"rate": 0.001, "burst": 1}'])
async def test_an_enqueue_under_way_counts_against_the_cap(meeting: Meeting, limits: str, commits: bool) -> None:
    await meeting.owner.execute(CHANGE, meeting.tenant, limits)
    await meeting.first.execute("BEGIN")
    assert len(await meeting.first.fetch(ENQUEUE, new_id(), meeting.tenant, "noop", 0, None)) == 1
    other = asyncio.ensure_future(meeting.second.fetch(ENQUEUE, new_id(), meeting.tenant, "noop", 0, None))
    await until_blocked(meeting.owner, meeting.first, other)
    await meeting.first.execute("COMMIT" if commits else "ROLLBACK")
    assert len(await other) == (0 if commits else 1)
    assert await meeting.owner.fetchval("SELECT count(*) FROM ingot.jobs") == 1
