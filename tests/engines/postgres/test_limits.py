"""Overlapping calls under one limit: uncommitted claims and orders count for other sessions."""

from __future__ import annotations

import asyncio

import pytest

from ingot.engines.postgres.connection import Record
from ingot.kernel.ids import new_id
from tests.engines.postgres.interleaving import (
    ENQUEUE,
    NIL,
    Interleaving,
    claim,
)
from tests.postgres import ACT_SQL, until_blocked

CHANGE = f"SELECT ingot.change_tenant($1, NULL, NULL, NULL, $2, {ACT_SQL})"
DEFINE = f"""SELECT ingot.put_record('definition', $1, 'noop', $2, NULL, NULL, 100, {ACT_SQL}, 'definition.put',
    'definition/noop')"""


async def set_limit(interleaving: Interleaving, kind: str) -> None:
    """Permit one running job."""
    if kind == "tenant":
        await interleaving.owner.execute(CHANGE, interleaving.tenant, '{"max_running_jobs": 1}')
    else:
        await interleaving.owner.execute(DEFINE, NIL if kind == "type" else interleaving.tenant, '{"max_running": 1}')


@pytest.mark.parametrize("limits", ["{}", '{"max_unfinished_jobs": 5, "rate": 1}'])
async def test_is_bounded_is_true_only_with_a_running_limit(interleaving: Interleaving, limits: str) -> None:
    await interleaving.owner.execute(CHANGE, interleaving.tenant, limits)
    assert not await interleaving.owner.fetchval("SELECT ingot.is_bounded()")
    await interleaving.owner.execute(CHANGE, interleaving.tenant, '{"max_running_jobs": 1099511627776}')
    assert await interleaving.owner.fetchval("SELECT ingot.is_bounded()")


def job_ids(rows: list[Record]) -> list[str]:
    """The IDs of claimed jobs, without rows about capacity."""
    return [row["id"] for row in rows if row[0]]


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("kind", ["tenant", "type", "type of a tenant"])
async def test_an_uncommitted_claim_counts_toward_the_limit(
    interleaving: Interleaving, kind: str, commits: bool
) -> None:
    await set_limit(interleaving, kind)
    for _ in range(2):
        await interleaving.first.fetch(ENQUEUE, new_id(), interleaving.tenant, "noop", 0, None)
    await interleaving.first.execute("BEGIN")
    assert len(job_ids(await claim(interleaving.first, interleaving, ["noop"], [2]))) == 1
    assert job_ids(await claim(interleaving.second, interleaving, ["noop"], [2])) == []
    await interleaving.first.execute("COMMIT" if commits else "ROLLBACK")
    assert len(job_ids(await claim(interleaving.second, interleaving, ["noop"], [2]))) == (0 if commits else 1)
    assert await interleaving.owner.fetchval("SELECT count(*) FROM ingot.leases") == 1


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("limits", ['{"max_unfinished_jobs": 1}', '{"rate": 0.001, "burst": 1}'])
async def test_an_uncommitted_enqueue_counts_toward_the_cap(
    interleaving: Interleaving, limits: str, commits: bool
) -> None:
    await interleaving.owner.execute(CHANGE, interleaving.tenant, limits)
    await interleaving.first.execute("BEGIN")
    assert len(await interleaving.first.fetch(ENQUEUE, new_id(), interleaving.tenant, "noop", 0, None)) == 1
    other = asyncio.ensure_future(interleaving.second.fetch(ENQUEUE, new_id(), interleaving.tenant, "noop", 0, None))
    await until_blocked(interleaving.owner, interleaving.first, other)
    await interleaving.first.execute("COMMIT" if commits else "ROLLBACK")
    assert len(await other) == (0 if commits else 1)
    assert await interleaving.owner.fetchval("SELECT count(*) FROM ingot.jobs") == 1
