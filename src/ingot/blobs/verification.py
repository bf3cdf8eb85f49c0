"""The loop that takes up what others left unverified."""

from __future__ import annotations

import asyncio
from typing import Final

from ingot.blobs.uploads import Uploads
from ingot.kernel.clock import Clock
from ingot.kernel.loops import Loop

LOOK_SECONDS: Final = 30.0


class Verification(Loop):
    """Takes up what others left unverified."""

    name = "verification"

    def __init__(self, uploads: Uploads, clock: Clock) -> None:
        super().__init__()
        self._uploads = uploads
        self._clock = clock

    async def run_once(self) -> int:
        """Look once."""
        return await self._uploads.look_for_lost(self._clock.micros())

    async def rest(self) -> None:
        """Wait until the next look is due."""
        await asyncio.sleep(LOOK_SECONDS)
