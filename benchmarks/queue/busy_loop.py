"""An event loop kept busy: about a millisecond of pure Python, a yield, and again."""

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
    """How many turns of `burn` take one slice on this machine when it runs alone."""
    best = float("inf")
    for _ in range(trials):
        began = time.perf_counter()
        burn(count)
        best = min(best, time.perf_counter() - began)
    return max(1, int(count * SLICE_SECONDS / best))


class BusyLoop:
    """Burns slices of fixed work, so the slices done tell what share of a core was left for it."""

    def __init__(self, wanted: bool) -> None:
        self.running = wanted
        self.slices = 0
        self._count = burn_count() if wanted else 0

    async def run(self) -> None:
        while self.running:
            burn(self._count)
            self.slices += 1
            await asyncio.sleep(0)

    def run_in_thread(self) -> None:
        asyncio.run(self.run())

    def share(self, slices_before: int, seconds: float) -> float:
        """Of one core, since `slices_before` was read."""
        return (self.slices - slices_before) * SLICE_SECONDS / seconds
