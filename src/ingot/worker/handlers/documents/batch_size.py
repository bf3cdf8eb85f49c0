"""Adapts the number of pages that a converter gets per call."""

from __future__ import annotations

from typing import Final

BATCH_PAGES: Final = 32  # The initial size.
BATCH_PAGES_MAX: Final = 512
BATCH_SECONDS: Final = 1.0  # The size is doubled after a shorter batch, and halved after one of twice this time.
# If the time per page grows by this factor after the size was halved, the time is spent per call and not per page.
COST_GROWTH_MIN: Final = 1.5


class BatchSize:
    """Chooses batches that take about a second, or the largest batches if each call is expensive.

    Calls are expensive if a converter reads the whole file each time, whichever pages are requested.
    """

    def __init__(self) -> None:
        self.pages = BATCH_PAGES
        self._page_seconds: float | None = None  # Time per page of the last batch, if the size was halved after it.
        self._calls_are_expensive = False

    def record(self, pages: int, seconds: float) -> None:
        """Record the duration of a batch and adapt the size."""
        page_seconds = seconds / pages
        if self._page_seconds is not None and page_seconds > COST_GROWTH_MIN * self._page_seconds:
            self._calls_are_expensive = True
        self._page_seconds = None
        if self._calls_are_expensive:
            self.pages = BATCH_PAGES_MAX
        elif seconds < BATCH_SECONDS:
            self.pages = min(2 * self.pages, BATCH_PAGES_MAX)
        elif seconds > 2 * BATCH_SECONDS:
            self.pages = max(1, self.pages // 2)
            self._page_seconds = page_seconds
