"""When expired leases may be swept: not right after workers were unable to renew them."""

from __future__ import annotations

import time
from typing import Final

from ingot.jobs.worker_model import HEARTBEATS_PER_LEASE
from ingot.kernel.clock import MICROS

STALL_SECONDS_MIN: Final = 5.0  # A busy machine can delay the ticks of a healthy process by less.


class SweepGuard:
    """Postpones sweeps by one lease after the store was opened, the process was suspended, or the database was slow.

    A process whose event loop runs calls `tick` about once a second. Without any tick, only `postpone` has an effect.
    Times are in microseconds of the clock of the store.
    """

    def __init__(self, lease: int) -> None:
        self._lease = lease
        self._stall_seconds = max(STALL_SECONDS_MIN, lease / MICROS / HEARTBEATS_PER_LEASE)
        self._ticked_at: float | None = None
        self.sweep_from = 0

    def postpone(self, now: int) -> None:
        """Allow no sweep within one lease from now, because workers need that time to renew their leases."""
        self.sweep_from = max(self.sweep_from, now + self._lease)

    def tick(self, now: int) -> None:
        """Record that this process runs."""
        self.may_sweep(now)
        self._ticked_at = time.monotonic()

    def record_call(self, seconds: float, now: int) -> None:
        """Record how long a call of the database took, successful or not."""
        if seconds > self._stall_seconds:
            self.postpone(now)

    def record_jump(self, micros: int, now: int) -> None:
        """Record how far the clock of the store was ahead of its estimate. Leases may have expired by that alone.

        If it was set back, the earliest time of a sweep moves back as well.
        """
        if abs(micros) > self._stall_seconds * MICROS:
            self.sweep_from = now + self._lease

    def may_sweep(self, now: int) -> bool:
        """Return whether leases that have expired may be swept. Notices that the process was suspended."""
        ticked_at, at = self._ticked_at, time.monotonic()
        if ticked_at is not None and at - ticked_at > self._stall_seconds:
            self.postpone(now)
            self._ticked_at = at
        return now >= self.sweep_from
