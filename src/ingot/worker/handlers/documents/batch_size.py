"""How many pages a converter is asked for at a time."""

from __future__ import annotations

from typing import Final

BATCH_PAGES: Final = 32  # At first.
BATCH_PAGES_MAX: Final = 512
BATCH_SECONDS: Final = 1.0  # A batch that takes less is doubled, and one that takes far more is halved.
COST_GROWTH_MIN: Final = (
    1.5  # So much more for a page after a halving: it is the call that takes long, and not the pages.
)


class BatchSize:
    """Finds the size of batches that are about a second's work; as few as can be where each call is dear.

    A converter may read all of a large file for every call, whatever pages it is asked for.
    """

    def __init__(self) -> None:
        self.pages = BATCH_PAGES
        self._page_seconds: float | None = None  # Of the batch that was halved.
        self._calls_are_expensive = False

    def record(self, pages: int, seconds: float) -> None:
        """A batch of so many pages took so long."""
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
