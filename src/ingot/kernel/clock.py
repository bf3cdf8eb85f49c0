"""Clocks. Code gets its clock as an argument, so that tests can set the time.

Inside the engines, an instant is an integer: microseconds since 1970 UTC. The API uses aware datetimes.
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
    """A source of the current time."""

    def micros(self) -> int:
        """Return the current time in microseconds since 1970 UTC."""


class SystemClock:
    """The wall time at the start plus the monotonic time since then.

    Later changes of the wall clock have no effect.
    """

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()

    def micros(self) -> int:
        """Return the current time in microseconds since 1970 UTC."""
        return (self._offset + time.monotonic_ns()) // 1000


class WallClock:
    """The clock of the machine as it is set now. It can go back. Use it for working hours."""

    def micros(self) -> int:
        """Return the current time in microseconds since 1970 UTC."""
        return time.time_ns() // 1000


class MonotonicClock:
    """A wrapper of another clock that starts at `floor` or later and never goes back.

    While the other clock is behind, time continues from its latest value at the pace of the other clock.
    """

    def __init__(self, clock: Clock, *, floor: int) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last_reading = clock.micros()
        self._ahead_micros = max(0, floor - self._last_reading)

    def micros(self) -> int:
        """Return the current time in microseconds since 1970 UTC."""
        with self._lock:
            reading = self._clock.micros()
            self._ahead_micros += max(0, self._last_reading - reading)
            self._last_reading = reading
            return reading + self._ahead_micros


class ManualClock:
    """A clock for tests that moves only with `advance`."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._micros = to_micros(start)

    def micros(self) -> int:
        """Return the time of this clock in microseconds since 1970 UTC."""
        return self._micros

    def now(self) -> datetime:
        """Return the time of this clock as an aware datetime."""
        return to_datetime(self._micros)

    def advance(self, *, seconds: float = 0, days: float = 0) -> None:
        """Move the clock forward, or back with negative numbers."""
        self._micros += round((seconds + days * 86_400) * MICROS)


@lru_cache(maxsize=256)
def to_datetime(micros: int) -> datetime:
    """Convert an instant to an aware UTC datetime. Results are cached: rows written together share their instants."""
    return _EPOCH + timedelta(microseconds=micros)


def to_datetime_or_none(micros: int | None) -> datetime | None:
    """Convert an instant to an aware UTC datetime, and `None` to `None`."""
    return None if micros is None else to_datetime(micros)


def to_micros(moment: datetime) -> int:
    """Convert an aware datetime to an instant. Raises `InvalidInput` for a datetime without a UTC offset."""
    if moment.tzinfo is None:
        raise InvalidInput(
            f"the time {moment.isoformat()} has no UTC offset", hint="Add an offset, such as +00:00 or Z."
        )
    return (moment - _EPOCH) // _MICROSECOND
