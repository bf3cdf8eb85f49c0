"""Counts the starts of handlers, and waits for them."""

from __future__ import annotations

import asyncio
import time


class StartCounter:
    """Counts starts, in the thread of the event loop or in that of a worker."""

    def __init__(self, expected_jobs: int) -> None:
        self.jobs = 0
        self.first = self.last = 0.0
        self._loop = asyncio.get_running_loop()
        self._expected_jobs = expected_jobs
        self._reached = asyncio.Event()

    def record(self, number: int) -> None:
        """Record that a handler starts now."""
        self.last = time.perf_counter()
        if not self.jobs:
            self.first = self.last
        self.jobs += 1
        if self.jobs == self._expected_jobs:
            self._loop.call_soon_threadsafe(self._reached.set)

    async def await_all(self, seconds_max: float) -> None:
        """Wait until all expected jobs have started. Raises `TimeoutError`."""
        async with asyncio.timeout(seconds_max):
            await self._reached.wait()

    async def await_count(self, jobs: int, seconds_max: float) -> None:
        """Wait until this number of jobs have started. Raises `TimeoutError`."""
        self._reached.clear()
        self._expected_jobs = jobs
        if self.jobs < jobs:
            await self.await_all(seconds_max)
