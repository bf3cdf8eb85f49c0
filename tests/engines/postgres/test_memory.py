"""Where the next scan of a lane begins: behind what was claimed, and never behind what waits."""

from __future__ import annotations

import time

import pytest

from ingot.engines.postgres.memory import NIL, RECENT_MAX, START, LaneHint, Position
from ingot.kernel.ids import new_id


def at(run_at: int, priority: int = 3) -> Position:
    return priority, run_at, new_id()


@pytest.fixture
def hint() -> LaneHint:
    return LaneHint(whole_at=time.monotonic())


def test_a_scan_begins_after_what_was_claimed(hint: LaneHint) -> None:
    last = at(10)
    hint.claimed(START, last, hint.version)
    assert hint.begin() == last


def test_what_is_put_before_it_is_found_by_the_next_scan(hint: LaneHint) -> None:
    hint.claimed(START, at(10), hint.version)
    for first in (at(7), at(9), at(50, priority=1)):
        hint.put(first)
        assert hint.begin() < first
        assert hint.begin() > START


def test_what_is_put_behind_it_changes_nothing(hint: LaneHint) -> None:
    last = at(10)
    hint.claimed(START, last, hint.version)
    hint.put(at(11))
    assert hint.begin() == last


def test_what_is_put_while_a_claim_is_under_way_is_not_passed_over(hint: LaneHint) -> None:
    hint.put(at(5))
    version, begin = hint.version, hint.begin()
    early, late = at(7), at(20)
    hint.put(late)
    hint.put(early)
    hint.claimed(begin, at(10), version)
    assert hint.begin() == (3, 7, NIL)
    hint.claimed(hint.begin(), at(15), hint.version)
    assert hint.begin()[1] == 15


def test_claims_under_way_together_reach_as_far_as_the_furthest(hint: LaneHint) -> None:
    begin, version = hint.begin(), hint.version
    hint.claimed(START, at(1), version)
    near, far = at(10), at(20)
    begin = hint.begin()
    hint.claimed(begin, far, version)
    hint.claimed(begin, near, version)
    assert hint.begin() == far


def test_more_than_is_remembered_moves_nothing(hint: LaneHint) -> None:
    hint.claimed(START, at(10), hint.version)
    version, begin = hint.version, hint.begin()
    for _ in range(RECENT_MAX + 1):
        hint.put(at(100))
    hint.claimed(begin, at(50), version)
    assert hint.begin() == begin


def test_now_and_then_a_scan_begins_at_the_front() -> None:
    hint = LaneHint(whole_at=time.monotonic() - 1, patience=0.5)
    hint.claimed(START, at(10), hint.version)
    assert hint.begin() == START
