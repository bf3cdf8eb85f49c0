"""Working hours: the times of day at which a worker claims jobs."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from ingot.kernel.errors import InvalidInput

DAY_MINUTES: Final = 24 * 60
WINDOWS_MAX: Final = 24
HINT: Final = "Use a format like 22:00-06:00, and separate several windows with commas: 12:00-13:00,22:00-06:00."
_WINDOW = re.compile(r"(\d\d):(\d\d)-(\d\d):(\d\d)", re.ASCII)
_MINUTE = timedelta(minutes=1)


class Window(msgspec.Struct, frozen=True):
    """A window between two minutes of the day. It spans midnight if the end is before the beginning."""

    begin: int
    end: int

    def contains(self, minute: int) -> bool:
        """Whether a minute of the day is in the window."""
        if self.begin < self.end:
            return self.begin <= minute < self.end
        return minute >= self.begin or minute < self.end


class Hours(msgspec.Struct, frozen=True):
    """The windows of every day in a time zone. `None` is the time zone of the machine.

    Windows follow local time. When the clocks change, an hour that is skipped opens nothing, and an hour that is
    repeated counts twice.
    """

    windows: tuple[Window, ...]
    zone: tzinfo | None = None

    def is_open(self, now: datetime) -> bool:
        """Whether this time is in one of the windows."""
        wall = now.astimezone(self.zone)
        minute = 60 * wall.hour + wall.minute
        return any(window.contains(minute) for window in self.windows)

    def open_seconds(self, now: datetime, *, seconds_max: float) -> float:
        """Return for how many seconds the hours stay open, at most `seconds_max`; 0 if they are closed now."""
        if not self.is_open(now):
            return 0.0
        later = now.astimezone(UTC).replace(second=0, microsecond=0) + _MINUTE
        while (seconds := (later - now).total_seconds()) < seconds_max:
            if not self.is_open(later):
                return seconds
            later += _MINUTE
        return seconds_max


def parse_hours(text: str, timezone: str | None = None) -> Hours:
    """Parse hours such as `12:00-13:00,22:00-06:00`. Raises `InvalidInput`."""
    parts = text.split(",")
    if len(parts) > WINDOWS_MAX:
        raise InvalidInput(f"hours can have at most {WINDOWS_MAX} windows, got {len(parts)}")
    return Hours(windows=tuple(_parse_window(part.strip()) for part in parts), zone=_parse_timezone(timezone))


def _parse_window(text: str) -> Window:
    match = _WINDOW.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{text[:64]!r} is not a window of hours", hint=HINT)
    hour, minute, last_hour, last_minute = map(int, match.groups())
    begin, end = 60 * hour + minute, 60 * last_hour + last_minute
    if max(minute, last_minute) > 59 or begin >= DAY_MINUTES or end > DAY_MINUTES:
        raise InvalidInput(f"{text[:64]!r} has an invalid time; times go from 00:00 to 24:00", hint=HINT)
    if begin == end:
        raise InvalidInput(
            f"{text!r} is empty: it begins and ends at the same time", hint="Use 00:00-24:00 for the whole day."
        )
    return Window(begin, end)


def _parse_timezone(name: str | None) -> tzinfo | None:
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInput(
            f"unknown time zone {name[:64]!r}",
            hint="Use a name such as Europe/Zurich, or omit it to use the time zone of the machine.",
        ) from None
