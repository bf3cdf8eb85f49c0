"""Clocks: conversion to microseconds since 1970, manual clocks, and monotonic clocks."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.kernel.clock import (
    MICROS,
    ManualClock,
    MonotonicClock,
    SystemClock,
    to_datetime,
    to_datetime_or_none,
    to_micros,
)
from ingot.kernel.errors import InvalidInput

moments = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001 - bounds


@given(moments)
def test_converting_a_time_to_micros_and_back_changes_nothing(moment: datetime) -> None:
    assert to_datetime(to_micros(moment)) == moment


@given(moments, st.integers(-23, 23))
def test_the_utc_offset_of_a_time_does_not_change_its_micros(moment: datetime, hours: int) -> None:
    assert to_micros(moment.astimezone(timezone(timedelta(hours=hours)))) == to_micros(moment)


def test_micros_count_from_1970() -> None:
    assert to_micros(datetime(1970, 1, 1, tzinfo=UTC)) == 0
    assert to_micros(datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)) == MICROS + 5


def test_a_missing_time_stays_missing() -> None:
    assert to_datetime_or_none(None) is None
    assert to_datetime_or_none(0) == datetime(1970, 1, 1, tzinfo=UTC)


def test_a_time_without_an_offset_is_rejected_with_a_hint() -> None:
    with pytest.raises(InvalidInput) as caught:
        to_micros(datetime(2026, 1, 1))  # noqa: DTZ001 - rejected
    assert "+00:00" in caught.value.hint


def test_a_manual_clock_moves_only_when_advanced() -> None:
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    start = clock.micros()
    assert (clock.now(), clock.micros()) == (datetime(2030, 1, 1, tzinfo=UTC), start)
    clock.advance(seconds=1.5, days=1)
    assert clock.micros() - start == 86_401 * MICROS + MICROS // 2
    assert clock.now() == datetime(2030, 1, 2, 0, 0, 1, 500_000, tzinfo=UTC)
    clock.advance(days=-2)
    assert clock.now() < datetime(2030, 1, 1, tzinfo=UTC)


def test_the_system_clock_starts_at_the_wall_time_and_never_goes_back() -> None:
    clock = SystemClock()
    readings = [clock.micros() for _ in range(1000)]
    assert abs(readings[0] - time.time() * MICROS) < 5 * MICROS
    assert readings == sorted(readings)


def test_the_system_clock_ignores_later_changes_of_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    before = clock.micros()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 0 <= clock.micros() - before < 60 * MICROS


def test_a_monotonic_clock_starts_at_its_floor_and_advances_with_the_other_clock() -> None:
    wall = ManualClock()
    floor = wall.micros() + 500 * MICROS
    clock = MonotonicClock(wall, floor=floor)
    assert clock.micros() == floor
    wall.advance(seconds=3)
    assert clock.micros() == floor + 3 * MICROS


def test_a_monotonic_clock_above_its_floor_equals_the_other_clock() -> None:
    wall = ManualClock()
    assert MonotonicClock(wall, floor=0).micros() == wall.micros()


@given(st.integers(-(10**9), 10**9), st.lists(st.integers(-(10**6), 10**6)))
def test_a_monotonic_clock_counts_steps_forward_and_ignores_steps_back(floor: int, steps: list[int]) -> None:
    wall = ManualClock()
    clock = MonotonicClock(wall, floor=wall.micros() + floor)
    readings = [clock.micros()]
    for step in steps:
        wall.advance(seconds=step)
        readings.append(clock.micros())
    moved = [after - before for before, after in pairwise(readings)]
    assert moved == [max(0, step) * MICROS for step in steps]
