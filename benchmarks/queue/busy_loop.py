"""A coroutine that keeps an event loop busy: it computes for about a millisecond, yields, and repeats."""

from __future__ import annotations

import asyncio
import time
from typing import Final

SLICE_SECONDS: Final = 0.001


def burn(count: int) -> int:
    total = 0
    for number in range(count):
        total += number
    return total


def burn_count(trials: int = 30, count: int = 20_000) -> int:
    """Return the count with which `burn` takes one slice on an idle machine."""
    best = float("inf")
    for _ in range(trials):
        began = time.perf_counter()
        burn(count)
        best = min(best, time.perf_counter() - began)
    return max(1, int(count * SLICE_SECONDS / best))


class BusyLoop:
    """Runs slices of fixed work. Their number is a measure of the share of a core that was left for them."""

    def __init__(self, enabled: bool) -> None:
        self.running = enabled
        self.slices = 0
        self._count = burn_count() if enabled else 0

    async def run(self) -> None:
        while self.running:
            burn(self._count)
            self.slices += 1
            await asyncio.sleep(0)

    def run_in_thread(self) -> None:
        asyncio.run(self.run())

    def share(self, slices_before: int, seconds: float) -> float:
        """Return the share of one core that was left, given the slices `seconds` ago."""
        return (self.slices - slices_before) * SLICE_SECONDS / seconds
