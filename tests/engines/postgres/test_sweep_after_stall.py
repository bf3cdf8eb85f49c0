"""Leases that expired while the database did not respond are not swept."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from ingot.engines.postgres import maintenance
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.lane_cache import LaneCache
from ingot.kernel.clock import ManualClock

LEASE = 4000  # A millisecond counts as a stall.
STALL_SECONDS = 0.005
DAY = 86_400_000_000


class StallingDatabase:
    """A database that responds late to one statement, and has expired leases."""

    def __init__(self, lane_cache: LaneCache, statement: str) -> None:
        self._lane_cache = lane_cache
        self._statement = statement
        self.calls: list[str] = []

    async def call(self, statement: str, *values: Any, **_: Any) -> list[Any]:
        return (await self.call_timed(statement, *values))[0]

    async def call_timed(self, statement: str, *_: Any, **__: Any) -> tuple[list[Any], float]:
        self.calls.append(statement)
        if statement == self._statement:
            await asyncio.sleep(STALL_SECONDS)
            self._lane_cache.polled_at = time.monotonic()  # Another poll began.
        answers: dict[str, list[Any]] = {
            CALL.expired_leases: [{"id": "job", "fence": 1}],
            CALL.next_due: [(None,)],
            CALL.next_expiry: [(None,)],
        }
        return answers.get(statement, []), 0.0


@pytest.fixture
def lane_cache(monkeypatch: pytest.MonkeyPatch) -> LaneCache:
    """A cache that knows of an expired lease and a due job, of which a poll was just made."""
    monkeypatch.setattr("ingot.engines.sweep_guard.STALL_SECONDS_MIN", 0.0)
    return cache_with_expired_lease()


def cache_with_expired_lease() -> LaneCache:
    lane_cache = LaneCache(ManualClock(), lease=LEASE)
    lane_cache.next_expiry = lane_cache.next_due = lane_cache.now() - 1
    lane_cache.polled_at = time.monotonic()
    return lane_cache


@pytest.mark.parametrize("statement", [CALL.promote, CALL.next_due, CALL.expired_leases])
async def test_leases_are_not_swept_after_a_call_before_the_sweep_has_stalled(
    lane_cache: LaneCache, statement: str
) -> None:
    database: Any = StallingDatabase(lane_cache, statement)
    assert (await maintenance.maintain(database, lane_cache)).swept == 0
    assert CALL.sweep not in database.calls
    assert lane_cache.next_expiry is not None
    assert lane_cache.next_sweep() == lane_cache.now() + LEASE


async def test_leases_are_not_swept_right_after_the_clock_of_the_database_was_set(lane_cache: LaneCache) -> None:
    now = lane_cache.now()
    lane_cache.set_clock(now + LEASE // 4)
    assert lane_cache.sweep_guard.may_sweep(now)
    for time_set in (now + DAY, now):  # Ahead, and back.
        lane_cache.set_clock(time_set)
        assert not lane_cache.sweep_guard.may_sweep(time_set + LEASE - 1)
        assert lane_cache.sweep_guard.may_sweep(time_set + LEASE)


async def test_a_poll_that_stalls_is_noticed_although_another_one_began(lane_cache: LaneCache) -> None:
    database: Any = StallingDatabase(lane_cache, CALL.poll)
    await maintenance.poll(database, lane_cache)
    assert not lane_cache.sweep_guard.may_sweep(lane_cache.now())


async def test_leases_are_swept_while_the_database_responds() -> None:
    lane_cache = cache_with_expired_lease()
    database: Any = StallingDatabase(lane_cache, CALL.promote)
    await maintenance.maintain(database, lane_cache)
    assert CALL.sweep in database.calls
