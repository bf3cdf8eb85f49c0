"""The loop that makes due jobs ready and sweeps expired leases."""

from __future__ import annotations

import asyncio

from ingot.jobs.model import MaintenanceResult
from ingot.jobs.ports import JobStore, MaintainJobs
from ingot.kernel.loops import Loop
from ingot.kernel.waits import wait_for

PAUSE_SECONDS_MIN = 0.001
TICK_SECONDS = 1.0


class JobMaintenance(Loop):
    """Runs the maintenance of jobs whenever it is due, and sleeps until then."""

    name = "jobs.maintenance"
    pause_after_error_seconds_max = 2.0  # Due jobs must not wait long after an outage of the store.

    def __init__(self, store: JobStore) -> None:
        super().__init__()
        self._store = store
        self._rescheduled = asyncio.Event()
        store.on_maintenance_rescheduled(self._rescheduled.set)

    async def run_once(self) -> MaintenanceResult:
        """Run the maintenance that is due now. If it takes long, the process still counts as running."""
        running = asyncio.ensure_future(self._store.run(MaintainJobs()))
        try:
            while not (await asyncio.wait({running}, timeout=TICK_SECONDS))[0]:
                self._store.tick()
        finally:
            running.cancel()
        return running.result()

    async def wait(self) -> None:
        """Wait until maintenance is due. A change of the due time is taken into account."""
        self._rescheduled.clear()
        self._store.tick()
        while (seconds := self._store.seconds_to_maintenance()) is None or seconds > 0:
            pause = TICK_SECONDS if seconds is None else min(max(seconds, PAUSE_SECONDS_MIN), TICK_SECONDS)
            if await wait_for(self._rescheduled, pause):
                self._rescheduled.clear()
            self._store.tick()
