"""The loops that watch over workers: what others did about them, and who has gone silent."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final

from ingot.jobs.worker_model import WorkerMaintenanceResult
from ingot.jobs.workers import Workers
from ingot.kernel.loops import Loop

POLL_SECONDS: Final = 1.0
POLL_COST_FACTOR: Final = 20  # Looks take no more than this share of the time, however many wait.
MAINTENANCE_SECONDS_MAX: Final = 15.0


class HeartbeatPoller(Loop):
    """Looks about once a second what others did, for all heartbeats that wait together."""

    name = "jobs.worker_watch"

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self._workers = workers
        self._last_poll_seconds = 0.0

    async def run_once(self) -> None:
        """One look."""
        began = time.monotonic()
        await self._workers.poll()
        self._last_poll_seconds = time.monotonic() - began

    async def wait(self) -> None:
        """Wait until the next look, a little longer each time by chance; without others, until somebody waits."""
        await asyncio.sleep(max(POLL_SECONDS, self._last_poll_seconds * POLL_COST_FACTOR) * random.uniform(1.0, 1.1))
        await self._workers.wait_until_poll_needed()


class WorkerMaintenance(Loop):
    """Takes workers that have gone silent for offline."""

    name = "jobs.worker_tending"

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self._workers = workers

    async def run_once(self) -> WorkerMaintenanceResult:
        """One round; as long as there are more, the next follows at once."""
        while (tended := await self._workers.maintain()).more:
            pass
        return tended

    async def wait(self) -> None:
        """Wait a part of the time after which a worker is silent."""
        await asyncio.sleep(min(MAINTENANCE_SECONDS_MAX, self._workers.heartbeat_seconds) * random.uniform(1.0, 1.2))
