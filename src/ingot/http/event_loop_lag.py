"""How late the event loop is: what keeps it busy keeps everybody waiting."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from ingot.kernel.loops import Loop

EVERY_SECONDS: Final = 0.5
SAMPLES_MAX: Final = 20  # The last ten seconds.


class EventLoopLag(Loop):
    """Sleeps a little, again and again, and notes how much longer that took."""

    name = "http.lag"

    def __init__(self) -> None:
        super().__init__()
        self._delays_seconds: deque[float] = deque(maxlen=SAMPLES_MAX)

    @property
    def worst_seconds(self) -> float:
        """The longest of the last ten seconds."""
        return max(self._delays_seconds, default=0.0)

    async def run_once(self) -> float:
        """Measure once."""
        clock = asyncio.get_running_loop().time
        due = clock() + EVERY_SECONDS
        await asyncio.sleep(EVERY_SECONDS)
        late = max(0.0, clock() - due)
        self._delays_seconds.append(late)
        return late

    async def wait(self) -> None:
        """The measuring is the rest."""
