"""The loop that removes events whose retention has passed."""

from __future__ import annotations

import asyncio
from typing import Final

from ingot.events.model import Forgotten
from ingot.events.ports import EventLog, ForgetEvents
from ingot.kernel.clock import MICROS
from ingot.kernel.loops import Loop

EVERY_SECONDS: Final = 60.0
BATCHES_MAX: Final = 200
PAUSE_SECONDS: Final = 0.05  # Lets other commands run between two rounds.


class EventRetention(Loop):
    """Removes old events in bounded rounds with pauses. With `days=0`, events are kept forever."""

    name = "events.retention"

    def __init__(self, log: EventLog, *, days: float) -> None:
        super().__init__()
        self._log = log
        self._retention_micros = round(days * 86_400 * MICROS) or None
        self._has_more = False

    async def run_once(self) -> Forgotten:
        """Remove up to `BATCHES_MAX` batches of events."""
        forgotten = await self._log.run(ForgetEvents(keep=self._retention_micros, limit=BATCHES_MAX))
        self._has_more = forgotten.more
        return forgotten

    async def wait(self) -> None:
        """Wait briefly if there are more events to remove, and otherwise until the next round."""
        await asyncio.sleep(PAUSE_SECONDS if self._has_more else EVERY_SECONDS)
