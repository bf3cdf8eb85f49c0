"""Time is handed in: rooms ask a `Clock`, tests move one.

Inside the engines an instant is an integer of microseconds since 1970 UTC; people see aware datetimes.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Protocol

from ingot.kernel.errors import InvalidInput

MICROS = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Clock(Protocol):
    """Where the time comes from."""

    def micros(self) -> int:
        """The time now, in microseconds since 1970 UTC."""


class SystemClock:
    """Wall time at start plus monotonic time since: a wall clock set back or forward later does not reach us."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()

    def micros(self) -> int:
        """The time now, in microseconds since 1970 UTC."""
        return (self._offset + time.monotonic_ns()) // 1000


class WallClock:
    """The clock of the machine as it is set now: for the hours that people keep. It can go back."""

    def micros(self) -> int:
        """The time now, in microseconds since 1970 UTC."""
        return time.time_ns() // 1000


class MonotonicClock:
    """Another clock's time, made to begin no earlier than `floor` and never to go back.

    When the other clock is behind, time goes on from where it was, at the other clock's pace.
    """

    def __init__(self, clock: Clock, *, floor: int) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last_reading = clock.micros()
        self._ahead_micros = max(0, floor - self._last_reading)

    def micros(self) -> int:
        """The time now, in microseconds since 1970 UTC."""
        with self._lock:
            reading = self._clock.micros()
            self._ahead_micros += max(0, self._last_reading - reading)
            self._last_reading = reading
            return reading + self._ahead_micros


class ManualClock:
    """A clock that moves only when told."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._micros = to_micros(start)

    def micros(self) -> int:
        """The time it was last moved to, in microseconds since 1970 UTC."""
        return self._micros

    def now(self) -> datetime:
        """The same instant for people."""
        return to_datetime(self._micros)

    def advance(self, *, seconds: float = 0, days: float = 0) -> None:
        """Move the clock; negative numbers set it back."""
        self._micros += round((seconds + days * 86_400) * MICROS)


@lru_cache(maxsize=256)
def to_datetime(micros: int) -> datetime:
    """An instant as an aware UTC datetime. What happens together shares its instants, so many are asked for again."""
    return _EPOCH + timedelta(microseconds=micros)


def to_datetime_or_none(micros: int | None) -> datetime | None:
    """The same for an instant that may be missing."""
    return None if micros is None else to_datetime(micros)


def to_micros(moment: datetime) -> int:
    """An aware datetime as an instant. Raises `InvalidInput` when it carries no offset."""
    if moment.tzinfo is None:
        raise InvalidInput(f"the time {moment.isoformat()} has no offset", hint="Add one, such as +00:00 or Z.")
    return (moment - _EPOCH) // _MICROSECOND
