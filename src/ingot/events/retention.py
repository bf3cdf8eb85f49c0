"""The loop that removes events which have been kept long enough."""

from __future__ import annotations

import asyncio
from typing import Final

from ingot.events.model import Forgotten
from ingot.events.ports import EventLog, ForgetEvents
from ingot.kernel.clock import MICROS
from ingot.kernel.loops import Loop

EVERY_SECONDS: Final = 60.0
BATCHES: Final = 200
REST_SECONDS: Final = 0.05  # Others come first between two rounds.


class EventRetention(Loop):
    """Removes in bounded rounds, with a rest after each. With no days events are kept for ever."""

    name = "events.retention"

    def __init__(self, log: EventLog, *, days: float) -> None:
        super().__init__()
        self._log = log
        self._keep = round(days * 86_400 * MICROS) or None
        self._more = False

    async def run_once(self) -> Forgotten:
        """Remove one round."""
        forgotten = await self._log.run(ForgetEvents(keep=self._keep, limit=BATCHES))
        self._more = forgotten.more
        return forgotten

    async def rest(self) -> None:
        """Wait a little when there is more to remove, and otherwise until the next round."""
        await asyncio.sleep(REST_SECONDS if self._more else EVERY_SECONDS)
