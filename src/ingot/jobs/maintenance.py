"""The loop that moves due work to the ready work and sweeps the leases of silent workers."""

from __future__ import annotations

import asyncio

from ingot.jobs.model import Tended
from ingot.jobs.ports import JobStore, Tend
from ingot.kernel.loops import Loop
from ingot.kernel.waits import wait_for

REST_SECONDS_MIN = 0.001
REST_SECONDS_MAX = 60.0


class Maintenance(Loop):
    """Tends the store when its agenda says that something is due, and rests until then."""

    name = "jobs.maintenance"

    def __init__(self, store: JobStore) -> None:
        super().__init__()
        self._store = store
        self._moved = asyncio.Event()
        store.on_agenda(self._moved.set)

    async def run_once(self) -> Tended:
        """Do what is due now."""
        return await self._store.run(Tend())

    async def rest(self) -> None:
        """Wait for the next instant on the agenda, or until it comes closer."""
        self._moved.clear()
        while (seconds := self._store.seconds_to_agenda()) is None or seconds > 0:
            pause = REST_SECONDS_MAX if seconds is None else min(max(seconds, REST_SECONDS_MIN), REST_SECONDS_MAX)
            if await wait_for(self._moved, pause):
                self._moved.clear()
