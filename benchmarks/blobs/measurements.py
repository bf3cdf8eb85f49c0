"""Measured values by name, and their medians and ratios."""

from __future__ import annotations

import statistics
from collections import defaultdict

from benchmarks.blobs.socket_client import TransferResult

MB = 1_000_000


class Measurements:
    """All values of a run."""

    def __init__(self) -> None:
        self.servers_seconds = 0.0  # CPU time of servers that are not our children.
        self._values: dict[str, list[float]] = defaultdict(list)

    def record(self, name: str, value: float) -> None:
        """Record a value."""
        self._values[name].append(value)

    def record_speed(self, name: str, result: TransferResult) -> None:
        """Record a speed, in megabytes per second."""
        self.record(name, result.bytes / result.seconds / MB)

    def has(self, *names: str) -> bool:
        """Return whether all of these were measured."""
        return all(name in self._values for name in names)

    def median(self, name: str) -> float:
        """Return the median."""
        return statistics.median(self._values[name])

    def range(self, name: str) -> tuple[float, float]:
        """Return the lowest and the highest value."""
        return min(self._values[name]), max(self._values[name])

    def ratio(self, name: str, baseline: str) -> float:
        """Return the median of the ratios to the baseline in the same round.

        A slow minute of the machine affects both values of a round.
        """
        pairs = zip(self._values[name], self._values[baseline], strict=True)
        return statistics.median(value / baseline_value for value, baseline_value in pairs)
