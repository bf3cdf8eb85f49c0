"""An event loop in which time passes at once."""

from __future__ import annotations

import asyncio


class HastyLoop(asyncio.SelectorEventLoop):
    """A loop in which nobody waits: when there is nothing to do, it is later at once."""

    passed = 0.0

    def time(self) -> float:
        return self.passed

    def _run_once(self) -> None:
        waiting = [timer.when() for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        if waiting and not self._ready:  # type: ignore[attr-defined]
            self.passed = max(self.passed, min(waiting))
        super()._run_once()  # type: ignore[misc]
