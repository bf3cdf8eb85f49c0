"""The loops that watch over workers: what others did about them, and who has gone silent."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final

from ingot.jobs.crew import CrewTended
from ingot.jobs.workers import Workers
from ingot.kernel.loops import Loop

LOOK_SECONDS: Final = 1.0
COST_FACTOR: Final = 20  # Looks take no more than this share of the time, however many wait.
TEND_SECONDS_MAX: Final = 15.0


class WorkerWatch(Loop):
    """Looks about once a second what others did, for all heartbeats that wait together."""

    name = "jobs.worker_watch"

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self._workers = workers
        self._cost = 0.0

    async def run_once(self) -> None:
        """One look."""
        began = time.monotonic()
        await self._workers.look()
        self._cost = time.monotonic() - began

    async def rest(self) -> None:
        """Wait until the next look, a little longer each time by chance; without others, until somebody waits."""
        await asyncio.sleep(max(LOOK_SECONDS, self._cost * COST_FACTOR) * random.uniform(1.0, 1.1))
        await self._workers.until_worth_a_look()


class WorkerTending(Loop):
    """Takes workers that have gone silent for offline."""

    name = "jobs.worker_tending"

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self._workers = workers

    async def run_once(self) -> CrewTended:
        """One round; as long as there are more, the next follows at once."""
        while (tended := await self._workers.tend()).more:
            pass
        return tended

    async def rest(self) -> None:
        """Wait a part of the time after which a worker is silent."""
        await asyncio.sleep(min(TEND_SECONDS_MAX, self._workers.heartbeat_seconds) * random.uniform(1.0, 1.2))
