"""Handlers that started: how many, when the first and the last, and waiting for them."""

from __future__ import annotations

import asyncio
import time


class StartCounter:
    """Counts starts, from the event loop's thread or from a worker's own. Each number counts once."""

    def __init__(self, wanted: int) -> None:
        self.jobs = 0
        self.first = self.last = 0.0
        self._loop = asyncio.get_running_loop()
        self._upto = wanted
        self._reached = asyncio.Event()

    def record(self, number: int) -> None:
        """A handler starts now."""
        self.last = time.perf_counter()
        if not self.jobs:
            self.first = self.last
        self.jobs += 1
        if self.jobs == self._upto:
            self._loop.call_soon_threadsafe(self._reached.set)

    async def all(self, seconds_max: float) -> None:
        """Wait for as many as are wanted. Raises `TimeoutError`."""
        async with asyncio.timeout(seconds_max):
            await self._reached.wait()

    async def upto(self, jobs: int, seconds_max: float) -> None:
        """Wait until this many have started. Raises `TimeoutError`."""
        self._reached.clear()
        self._upto = jobs
        if self.jobs < jobs:
            await self.all(seconds_max)
