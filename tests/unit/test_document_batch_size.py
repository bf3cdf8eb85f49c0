"""How many pages a converter is asked for at a time: as its pages, or its calls, are dear."""

from __future__ import annotations

import pytest

from ingot.worker.handlers.documents.batch_size import BATCH_PAGES_MAX, BatchSize


def calls_for(pages: int, *, call_seconds: float, page_seconds: float) -> tuple[int, float, int]:
    """How often a converter is called for so many pages, how long that takes, and the last size of a batch."""
    pace, calls, seconds, size = BatchSize(), 0, 0.0, 0
    while pages > 0:
        size = min(pace.pages, pages)
        took = call_seconds + size * page_seconds
        pace.record(size, took)
        pages, calls, seconds = pages - size, calls + 1, seconds + took
    return calls, seconds, size


def test_where_calls_are_dear_there_are_few() -> None:
    calls, seconds, _ = calls_for(3000, call_seconds=4.0, page_seconds=0.005)
    assert calls <= 8
    assert seconds < 60


@pytest.mark.parametrize("page_seconds", [0.7, 5.0])
def test_where_pages_are_dear_a_batch_is_one_or_two(page_seconds: float) -> None:
    *_, size = calls_for(200, call_seconds=0.0, page_seconds=page_seconds)
    assert size <= 2


def test_where_nothing_is_dear_batches_grow() -> None:
    calls, _, _ = calls_for(10 * BATCH_PAGES_MAX, call_seconds=0.01, page_seconds=0.001)
    assert calls < 16
