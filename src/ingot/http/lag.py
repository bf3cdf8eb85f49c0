"""How late the event loop is: what keeps it busy keeps everybody waiting."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from ingot.kernel.loops import Loop

EVERY_SECONDS: Final = 0.5
KEPT: Final = 20  # The last ten seconds.


class Lag(Loop):
    """Sleeps a little, again and again, and notes how much longer that took."""

    name = "http.lag"

    def __init__(self) -> None:
        super().__init__()
        self._late: deque[float] = deque(maxlen=KEPT)

    @property
    def seconds(self) -> float:
        """The longest of the last ten seconds."""
        return max(self._late, default=0.0)

    async def run_once(self) -> float:
        """Measure once."""
        clock = asyncio.get_running_loop().time
        due = clock() + EVERY_SECONDS
        await asyncio.sleep(EVERY_SECONDS)
        late = max(0.0, clock() - due)
        self._late.append(late)
        return late

    async def rest(self) -> None:
        """The measuring is the rest."""
