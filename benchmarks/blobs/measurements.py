"""What was found: figures by name, and what they come to."""

from __future__ import annotations

import statistics
from collections import defaultdict

from benchmarks.blobs.socket_client import TransferResult

MB = 1_000_000


class Measurements:
    """All figures of a run."""

    def __init__(self) -> None:
        self.servers_seconds = 0.0  # Used by servers that are not our children.
        self._values: dict[str, list[float]] = defaultdict(list)

    def note(self, name: str, value: float) -> None:
        """Keep a figure."""
        self._values[name].append(value)

    def speed(self, name: str, took: TransferResult) -> None:
        """Keep how fast something was, in megabytes a second."""
        self.note(name, took.bytes / took.seconds / MB)

    def has(self, *names: str) -> bool:
        """Whether all of these were measured."""
        return all(name in self._values for name in names)

    def middle(self, name: str) -> float:
        """The median."""
        return statistics.median(self._values[name])

    def range(self, name: str) -> tuple[float, float]:
        """The lowest and the highest."""
        return min(self._values[name]), max(self._values[name])

    def ratio(self, name: str, beside: str) -> float:
        """The median of what one turn is to that of the other in the same round.

        What slows the machine for a while slows both of a pair.
        """
        pairs = zip(self._values[name], self._values[beside], strict=True)
        return statistics.median(one / other for one, other in pairs)
