"""Measuring the lag of the event loop. Whatever blocks the loop delays every request."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from ingot.kernel.loops import Loop

EVERY_SECONDS: Final = 0.5
SAMPLES_MAX: Final = 20  # These cover the last ten seconds.


class EventLoopLag(Loop):
    """Sleeps repeatedly and records how late it wakes up."""

    name = "http.lag"

    def __init__(self) -> None:
        super().__init__()
        self._delays_seconds: deque[float] = deque(maxlen=SAMPLES_MAX)

    @property
    def worst_seconds(self) -> float:
        """The largest delay of the last ten seconds."""
        return max(self._delays_seconds, default=0.0)

    async def run_once(self) -> float:
        """Measure the delay once and return it in seconds."""
        clock = asyncio.get_running_loop().time
        due = clock() + EVERY_SECONDS
        await asyncio.sleep(EVERY_SECONDS)
        delay_seconds = max(0.0, clock() - due)
        self._delays_seconds.append(delay_seconds)
        return delay_seconds

    async def wait(self) -> None:
        """Do not pause: a measurement itself takes half a second."""
