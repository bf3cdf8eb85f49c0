"""An event loop that skips waiting times."""

from __future__ import annotations

import asyncio


class FastForwardLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer when nothing else is to be done."""

    elapsed = 0.0

    def time(self) -> float:
        return self.elapsed

    def _run_once(self) -> None:
        waiting = [timer.when() for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        if waiting and not self._ready:  # type: ignore[attr-defined]
            self.elapsed = max(self.elapsed, min(waiting))
        super()._run_once()  # type: ignore[misc]
