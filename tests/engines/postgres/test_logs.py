"""Overlapping appends to a log on PostgreSQL: the second call sees the result of the first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

import pytest

from ingot.engines.postgres.connection import PlainConnection as Raw
from ingot.jobs import Claim, LeaseLost
from tests.postgres import until_blocked
from tests.two_tenant_database import TenantPair

APPEND: Final = """
    SELECT * FROM ingot.append_logs(ARRAY[$1::uuid], ARRAY[$2::bigint], NULL, ARRAY[$3], ARRAY[0], 65536, NULL)
"""
SETTLE: Final = """
    SELECT * FROM ingot.settle(
        ARRAY[$1::uuid], ARRAY[$2::bigint], '{NULL}', '{succeeded}', '{t}', '{0}', '{NULL}', '{NULL}', '{NULL}'
    )
"""

T = TypeVar("T")


async def after_waiting(admin: Raw, first: Raw, second: Awaitable[T]) -> T:
    """Wait until the second call is blocked by the first, commit the first, and return the result of the second."""
    waiting = asyncio.ensure_future(second)
    await until_blocked(admin, first, waiting)
    assert not waiting.done(), "the second call did not wait"
    await first.execute("COMMIT")
    return await waiting


async def begin_call(pair: TenantPair, statement: str, claim: Claim, *values: str) -> Raw:
    """A connection that has made a call and not committed."""
    first = await pair.as_server()
    await first.execute("BEGIN")
    await first.fetch(statement, claim.job.id, claim.fence, *values)
    return first


async def test_overlapping_texts_are_stored_without_repeats(pair: TenantPair) -> None:
    claim = await pair.bench.make_claim("written")
    first = await begin_call(pair, APPEND, claim, "abc")
    second = pair.bench.jobs.append_log(claim.job.id, claim.fence, "bcde", offset=1)
    assert await after_waiting(await pair.connect(), first, second) == 5
    assert (await pair.bench.jobs.log(pair.bench.tenant, claim.job.id)).text == "abcde"


async def test_a_text_appended_during_the_settle_of_its_attempt_is_refused(pair: TenantPair) -> None:
    claim = await pair.bench.make_claim("written")
    first = await begin_call(pair, SETTLE, claim)
    second = pair.bench.jobs.append_log(claim.job.id, claim.fence, "late")
    with pytest.raises(LeaseLost):
        await after_waiting(await pair.connect(), first, second)
    assert (await pair.bench.jobs.log(pair.bench.tenant, claim.job.id)).text == ""
