"""Hours: when a worker takes work, by the clock on the wall."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from ingot.kernel.errors import InvalidInput

DAY_MINUTES: Final = 24 * 60
WINDOWS_MAX: Final = 24
HINT: Final = "Write it as in 22:00-06:00, several with commas: 12:00-13:00,22:00-06:00."
_WINDOW = re.compile(r"(\d\d):(\d\d)-(\d\d):(\d\d)", re.ASCII)
_MINUTE = timedelta(minutes=1)


class Window(msgspec.Struct, frozen=True):
    """From one minute of the day to another; over midnight when the end is before the beginning."""

    begin: int
    end: int

    def contains(self, minute: int) -> bool:
        """Whether a minute of the day is in it."""
        if self.begin < self.end:
            return self.begin <= minute < self.end
        return minute >= self.begin or minute < self.end


class Hours(msgspec.Struct, frozen=True):
    """The windows of every day, in a time zone; `None` is that of the machine.

    What the wall clock shows counts: an hour that it leaves out opens nothing, one that it shows twice counts twice.
    """

    windows: tuple[Window, ...]
    zone: tzinfo | None = None

    def is_open(self, now: datetime) -> bool:
        """Whether an instant is in one of the windows."""
        wall = now.astimezone(self.zone)
        minute = 60 * wall.hour + wall.minute
        return any(window.contains(minute) for window in self.windows)

    def open_seconds(self, now: datetime, *, seconds_max: float) -> float:
        """For how long it stays open from an instant on, looked at for so long; 0 when it is closed."""
        if not self.is_open(now):
            return 0.0
        later = now.astimezone(UTC).replace(second=0, microsecond=0) + _MINUTE
        while (seconds := (later - now).total_seconds()) < seconds_max:
            if not self.is_open(later):
                return seconds
            later += _MINUTE
        return seconds_max


def parse_hours(text: str, timezone: str | None = None) -> Hours:
    """Hours as people write them. Raises `InvalidInput`."""
    parts = text.split(",")
    if len(parts) > WINDOWS_MAX:
        raise InvalidInput(f"there are {len(parts)} windows of hours; the most is {WINDOWS_MAX}")
    return Hours(windows=tuple(_parse_window(part.strip()) for part in parts), zone=_parse_timezone(timezone))


def _parse_window(text: str) -> Window:
    found = _WINDOW.fullmatch(text)
    if found is None:
        raise InvalidInput(f"{text[:64]!r} are no hours", hint=HINT)
    hour, minute, last_hour, last_minute = map(int, found.groups())
    begin, end = 60 * hour + minute, 60 * last_hour + last_minute
    if max(minute, last_minute) > 59 or begin >= DAY_MINUTES or end > DAY_MINUTES:
        raise InvalidInput(f"{text[:64]!r} is outside of a day, which goes from 00:00 to 24:00", hint=HINT)
    if begin == end:
        raise InvalidInput(f"{text!r} begins when it ends", hint="Write 00:00-24:00 for the whole day.")
    return Window(begin, end)


def _parse_timezone(name: str | None) -> tzinfo | None:
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInput(
            f"there is no time zone {name[:64]!r} here",
            hint="Name one as in Europe/Zurich; the machine's is taken without.",
        ) from None
