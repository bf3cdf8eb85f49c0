"""Background loops: one lifecycle, supervised, with a `run_once` that tests call."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod

import structlog

log = structlog.get_logger(__name__)

PAUSE_AFTER_ERROR_SECONDS_MAX = 30.0


class Loop(ABC):
    """Calls `run_once` again and again; an error is logged and followed by a growing, jittered pause."""

    name = "loop"

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def run_once(self) -> object:
        """Do one round of the work."""

    @abstractmethod
    async def wait(self) -> None:
        """Wait until the next round is due."""

    def initial_delay_seconds(self) -> float:
        """How long after the start the first round is due."""
        return 0.0

    def start(self) -> None:
        """Begin in the background of the running event loop."""
        assert self._task is None, f"{self.name} runs already"
        self._task = asyncio.create_task(self._supervise(), name=self.name)

    async def stop(self) -> None:
        """End it and wait until it has ended. Stopping twice is fine."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _supervise(self) -> None:
        failures_in_a_row = 0
        await asyncio.sleep(self.initial_delay_seconds())
        while True:
            try:
                await self.run_once()
                failures_in_a_row = 0
                await self.wait()
            except Exception:
                failures_in_a_row += 1
                log.exception("loop_failed", loop=self.name, failures_in_a_row=failures_in_a_row)
                longest = min(2.0 ** min(failures_in_a_row, 10), PAUSE_AFTER_ERROR_SECONDS_MAX)
                await asyncio.sleep(random.uniform(longest / 2, longest))
