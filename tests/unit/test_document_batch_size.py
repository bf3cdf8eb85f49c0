"""Batch sizes of converters: they adapt to the cost of calls and of pages."""

from __future__ import annotations

import pytest

from ingot.worker.handlers.documents.batch_size import BATCH_PAGES_MAX, BatchSize


def calls_for(pages: int, *, call_seconds: float, page_seconds: float) -> tuple[int, float, int]:
    """The number of calls for these pages, how long they take, and the size of the last batch."""
    batch_size, calls, seconds, size = BatchSize(), 0, 0.0, 0
    while pages > 0:
        size = min(batch_size.pages, pages)
        duration = call_seconds + size * page_seconds
        batch_size.record(size, duration)
        pages, calls, seconds = pages - size, calls + 1, seconds + duration
    return calls, seconds, size


def test_expensive_calls_lead_to_few_calls() -> None:
    calls, seconds, _ = calls_for(3000, call_seconds=4.0, page_seconds=0.005)
    assert calls <= 8
    assert seconds < 60


@pytest.mark.parametrize("page_seconds", [0.7, 5.0])
def test_expensive_pages_lead_to_batches_of_one_or_two(page_seconds: float) -> None:
    *_, size = calls_for(200, call_seconds=0.0, page_seconds=page_seconds)
    assert size <= 2


def test_batches_grow_when_calls_and_pages_are_cheap() -> None:
    calls, _, _ = calls_for(10 * BATCH_PAGES_MAX, call_seconds=0.01, page_seconds=0.001)
    assert calls < 16
