"""Loops for workers: polling for changes by other processes, and marking workers as offline."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final

from ingot.jobs.worker_model import WorkerMaintenanceResult
from ingot.jobs.workers import Workers
from ingot.kernel.loops import Loop

POLL_SECONDS: Final = 1.0
POLL_COST_FACTOR: Final = 20  # Polling takes at most about 1/20 of the time, however many heartbeats wait.
POLL_PAUSE_SECONDS_MAX: Final = 10.0  # A poll that waited for an outage to end looks expensive.
MAINTENANCE_SECONDS_MAX: Final = 15.0


class HeartbeatPoller(Loop):
    """Polls about once a second for changes by other processes, for all waiting heartbeats together."""

    name = "jobs.heartbeat_poller"
    pause_after_error_seconds_max = 2.0  # Cancel requests must reach workers soon after an outage of the store.

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self._workers = workers
        self._last_poll_seconds = 0.0

    async def run_once(self) -> None:
        """Poll once."""
        started_at = time.monotonic()
        await self._workers.poll()
        self._last_poll_seconds = time.monotonic() - started_at

    async def wait(self) -> None:
        """Wait until the next poll, with random variation.

        If no other process writes to the store, wait until there is a waiting heartbeat.
        """
        pause = min(self._last_poll_seconds * POLL_COST_FACTOR, POLL_PAUSE_SECONDS_MAX)
        await asyncio.sleep(max(POLL_SECONDS, pause) * random.uniform(1.0, 1.1))
        await self._workers.wait_until_poll_needed()


class WorkerMaintenance(Loop):
    """Marks workers that were silent for a lease as offline, and removes those that have been offline for long."""

    name = "jobs.worker_maintenance"

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self._workers = workers

    async def run_once(self) -> WorkerMaintenanceResult:
        """Process all silent workers, and return the result of the last step."""
        while (result := await self._workers.maintain()).more:
            pass
        return result

    async def wait(self) -> None:
        """Wait until the next round, with random variation."""
        await asyncio.sleep(min(MAINTENANCE_SECONDS_MAX, self._workers.heartbeat_seconds) * random.uniform(1.0, 1.2))
