"""Working hours: windows over midnight, days with 23 and 25 hours, and invalid hours."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.kernel.errors import InvalidInput
from ingot.worker.hours import DAY_MINUTES, Hours, Window, parse_hours

ZURICH = ZoneInfo("Europe/Zurich")
SPRING = datetime(2026, 3, 29, tzinfo=ZURICH)  # The clock is set from 02:00 to 03:00.
AUTUMN = datetime(2026, 10, 25, tzinfo=ZURICH)  # The clock is set from 03:00 to 02:00.
HALF_HOUR = ZoneInfo("Australia/Lord_Howe")  # Its clock is set by half an hour.
minutes = st.integers(0, DAY_MINUTES - 1)
windows = st.tuples(minutes, st.integers(0, DAY_MINUTES)).filter(lambda pair: pair[0] != pair[1])
moments = st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001 - bounds
zones = st.sampled_from([ZURICH, HALF_HOUR, ZoneInfo("America/New_York"), ZoneInfo("Asia/Kathmandu"), UTC])


def open_minutes(hours: Hours, day: datetime) -> int:
    """The number of open minutes of a day."""
    first = day.astimezone(UTC)
    last = (day + timedelta(days=1)).astimezone(UTC)
    count = int((last - first) / timedelta(minutes=1))
    return sum(hours.is_open(first + timedelta(minutes=minute)) for minute in range(count))


@pytest.mark.parametrize(
    ("text", "clock", "is_open"),
    [
        ("22:00-06:00", "21:59", False),
        ("22:00-06:00", "22:00", True),
        ("22:00-06:00", "00:00", True),
        ("22:00-06:00", "05:59", True),
        ("22:00-06:00", "06:00", False),
        ("09:00-17:00", "08:59", False),
        ("09:00-17:00", "09:00", True),
        ("09:00-17:00", "17:00", False),
        ("00:00-24:00", "23:59", True),
        ("22:00-00:00", "23:59", True),
        ("22:00-24:00", "00:00", False),
        ("12:00-13:00, 22:00-06:00", "12:30", True),
        ("12:00-13:00,22:00-06:00", "13:30", False),
    ],
)
def test_a_time_of_day_is_inside_or_outside_the_hours(text: str, clock: str, is_open: bool) -> None:
    hour, minute = map(int, clock.split(":"))
    now = datetime(2026, 6, 1, hour, minute, 30 if minute == 59 else 0, tzinfo=ZURICH)
    assert parse_hours(text, "Europe/Zurich").is_open(now.astimezone(UTC)) is is_open


@pytest.mark.parametrize(
    ("text", "spring", "autumn"),
    [
        ("00:00-24:00", 23 * 60, 25 * 60),
        ("00:00-06:00", 5 * 60, 7 * 60),
        ("02:15-02:45", 0, 60),
        ("02:30-04:00", 60, 120),
    ],
)
def test_days_on_which_the_clock_is_set_have_fewer_or_more_open_minutes(text: str, spring: int, autumn: int) -> None:
    hours = parse_hours(text, "Europe/Zurich")
    assert (open_minutes(hours, SPRING), open_minutes(hours, AUTUMN)) == (spring, autumn)


def test_a_window_over_midnight_ends_by_local_time() -> None:
    night = parse_hours("22:00-06:00", "Europe/Zurich")
    for day, utc_hour in ((SPRING, 4), (AUTUMN, 5)):  # 06:00 in summer and in winter time.
        end = datetime(day.year, day.month, day.day, utc_hour, tzinfo=UTC)
        assert night.open_seconds(end - timedelta(seconds=10), seconds_max=25) == 10
        assert night.open_seconds(end, seconds_max=25) == 0


@given(st.lists(windows, min_size=1, max_size=3), zones, moments, st.floats(0, 10_000))
def test_open_seconds_is_the_time_until_the_hours_end(
    pairs: list[tuple[int, int]], zone: ZoneInfo, now: datetime, most: float
) -> None:
    hours = Hours(windows=tuple(Window(*pair) for pair in pairs), zone=zone)
    seconds = hours.open_seconds(now, seconds_max=most)
    assert 0 <= seconds <= most
    if seconds < most:
        assert not hours.is_open(now + timedelta(seconds=seconds))
    for share in (0.0, 0.3, 0.999):
        if seconds > 0:
            assert hours.is_open(now + timedelta(seconds=seconds * share))


def test_hours_without_a_time_zone_use_that_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        assert parse_hours("09:00-10:00").is_open(datetime(2026, 6, 1, 0, 30, tzinfo=UTC))
        assert not parse_hours("09:00-10:00").is_open(datetime(2026, 6, 1, 9, 30, tzinfo=UTC))
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("text", "zone", "message"),
    [
        ("", None, "''"),
        ("22-6", None, "'22-6'"),
        ("22:00", None, "'22:00'"),
        ("22:00-06:00,", None, "''"),
        ("22:00-06:00;12:00-13:00", None, "'22:00-06:00;12:00-13:00'"),
        ("٢٢:00-06:00", None, "'٢٢:00-06:00'"),
        ("24:00-06:00", None, "'24:00-06:00'"),
        ("22:60-23:00", None, "'22:60-23:00'"),
        ("22:00-24:01", None, "'22:00-24:01'"),
        ("06:00-06:00", None, "'06:00-06:00' is empty"),
        (",".join(["12:00-13:00"] * 25), None, "at most 24 windows, got 25"),
        ("22:00-06:00", "Europe/Zürich", "time zone 'Europe/Zürich'"),
        ("22:00-06:00", "../etc/passwd", "time zone '../etc/passwd'"),
        ("22:00-06:00", "", "time zone ''"),
    ],
)
def test_invalid_hours_are_rejected(text: str, zone: str | None, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse_hours(text, zone)
