"""Supervised background loops."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod

import structlog

from ingot.kernel.errors import IngotError

log = structlog.get_logger(__name__)

PAUSE_AFTER_ERROR_SECONDS_MAX = 30.0


class Loop(ABC):
    """A background task that calls `run_once` repeatedly. Tests call `run_once` directly.

    An error is logged. The pause after it is jittered, and grows with each consecutive error.
    """

    name = "loop"
    pause_after_error_seconds_max = PAUSE_AFTER_ERROR_SECONDS_MAX

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def run_once(self) -> object:
        """Do one round of work."""

    @abstractmethod
    async def wait(self) -> None:
        """Wait until the next round is due."""

    def initial_delay_seconds(self) -> float:
        """Return the delay between the start of the loop and its first round."""
        return 0.0

    def start(self) -> None:
        """Start the loop as a task of the running event loop."""
        assert self._task is None, f"{self.name} is already running"
        self._task = asyncio.create_task(self._supervise(), name=self.name)

    async def stop(self) -> None:
        """Stop the loop and wait until it has ended. Can be called repeatedly."""
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
            except Exception as error:
                failures_in_a_row += 1
                if not (isinstance(error, IngotError) and error.is_logged):
                    log.exception("loop_failed", loop=self.name, failures_in_a_row=failures_in_a_row)
                pause_seconds_max = min(2.0 ** min(failures_in_a_row, 10), self.pause_after_error_seconds_max)
                await asyncio.sleep(random.uniform(pause_seconds_max / 2, pause_seconds_max))
