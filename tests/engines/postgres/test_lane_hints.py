"""Hints of lanes: a scan starts after the last claimed position, and never after a waiting job."""

from __future__ import annotations

import time

import pytest

from ingot.engines.postgres.lane_cache import LANE_START, NIL_ID, RECENT_POSITIONS_MAX, LaneHint, Position
from ingot.kernel.ids import new_id


def position(run_at: int, priority: int = 3) -> Position:
    return priority, run_at, new_id()


@pytest.fixture
def hint() -> LaneHint:
    return LaneHint(full_scan_at=time.monotonic())


def test_a_scan_starts_after_the_last_claimed_job(hint: LaneHint) -> None:
    last = position(10)
    hint.record_claim(LANE_START, last, hint.version)
    assert hint.scan_start() == last


def test_a_job_inserted_before_the_hint_is_found_by_the_next_scan(hint: LaneHint) -> None:
    hint.record_claim(LANE_START, position(10), hint.version)
    for first in (position(7), position(9), position(50, priority=1)):
        hint.record_insert(first)
        assert hint.scan_start() < first
        assert hint.scan_start() > LANE_START


def test_a_job_inserted_after_the_hint_does_not_move_it(hint: LaneHint) -> None:
    last = position(10)
    hint.record_claim(LANE_START, last, hint.version)
    hint.record_insert(position(11))
    assert hint.scan_start() == last


def test_a_job_inserted_during_a_claim_is_not_skipped(hint: LaneHint) -> None:
    hint.record_insert(position(5))
    version, begin = hint.version, hint.scan_start()
    early, late = position(7), position(20)
    hint.record_insert(late)
    hint.record_insert(early)
    hint.record_claim(begin, position(10), version)
    assert hint.scan_start() == (3, 7, NIL_ID)
    hint.record_claim(hint.scan_start(), position(15), hint.version)
    assert hint.scan_start()[1] == 15


def test_concurrent_claims_move_the_hint_to_the_furthest_position(hint: LaneHint) -> None:
    begin, version = hint.scan_start(), hint.version
    hint.record_claim(LANE_START, position(1), version)
    near, far = position(10), position(20)
    begin = hint.scan_start()
    hint.record_claim(begin, far, version)
    hint.record_claim(begin, near, version)
    assert hint.scan_start() == far


def test_more_inserts_than_remembered_leave_the_hint_unchanged(hint: LaneHint) -> None:
    hint.record_claim(LANE_START, position(10), hint.version)
    version, begin = hint.version, hint.scan_start()
    for _ in range(RECENT_POSITIONS_MAX + 1):
        hint.record_insert(position(100))
    hint.record_claim(begin, position(50), version)
    assert hint.scan_start() == begin


def test_a_full_scan_starts_at_the_front_at_intervals() -> None:
    hint = LaneHint(full_scan_at=time.monotonic() - 1, full_scan_interval_seconds=0.5)
    hint.record_claim(LANE_START, position(10), hint.version)
    assert hint.scan_start() == LANE_START
