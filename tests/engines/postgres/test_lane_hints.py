"""Where the next scan of a lane begins: behind what was claimed, and never behind what waits."""

from __future__ import annotations

import time

import pytest

from ingot.engines.postgres.lane_cache import LANE_START, NIL_ID, RECENT_POSITIONS_MAX, LaneHint, Position
from ingot.kernel.ids import new_id


def at(run_at: int, priority: int = 3) -> Position:
    return priority, run_at, new_id()


@pytest.fixture
def hint() -> LaneHint:
    return LaneHint(full_scan_at=time.monotonic())


def test_a_scan_begins_after_what_was_claimed(hint: LaneHint) -> None:
    last = at(10)
    hint.record_claim(LANE_START, last, hint.version)
    assert hint.scan_start() == last


def test_what_is_put_before_it_is_found_by_the_next_scan(hint: LaneHint) -> None:
    hint.record_claim(LANE_START, at(10), hint.version)
    for first in (at(7), at(9), at(50, priority=1)):
        hint.record_insert(first)
        assert hint.scan_start() < first
        assert hint.scan_start() > LANE_START


def test_what_is_put_behind_it_changes_nothing(hint: LaneHint) -> None:
    last = at(10)
    hint.record_claim(LANE_START, last, hint.version)
    hint.record_insert(at(11))
    assert hint.scan_start() == last


def test_what_is_put_while_a_claim_is_under_way_is_not_passed_over(hint: LaneHint) -> None:
    hint.record_insert(at(5))
    version, begin = hint.version, hint.scan_start()
    early, late = at(7), at(20)
    hint.record_insert(late)
    hint.record_insert(early)
    hint.record_claim(begin, at(10), version)
    assert hint.scan_start() == (3, 7, NIL_ID)
    hint.record_claim(hint.scan_start(), at(15), hint.version)
    assert hint.scan_start()[1] == 15


def test_claims_under_way_together_reach_as_far_as_the_furthest(hint: LaneHint) -> None:
    begin, version = hint.scan_start(), hint.version
    hint.record_claim(LANE_START, at(1), version)
    near, far = at(10), at(20)
    begin = hint.scan_start()
    hint.record_claim(begin, far, version)
    hint.record_claim(begin, near, version)
    assert hint.scan_start() == far


def test_more_than_is_remembered_moves_nothing(hint: LaneHint) -> None:
    hint.record_claim(LANE_START, at(10), hint.version)
    version, begin = hint.version, hint.scan_start()
    for _ in range(RECENT_POSITIONS_MAX + 1):
        hint.record_insert(at(100))
    hint.record_claim(begin, at(50), version)
    assert hint.scan_start() == begin


def test_now_and_then_a_scan_begins_at_the_front() -> None:
    hint = LaneHint(full_scan_at=time.monotonic() - 1, full_scan_interval_seconds=0.5)
    hint.record_claim(LANE_START, at(10), hint.version)
    assert hint.scan_start() == LANE_START
