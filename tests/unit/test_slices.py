"""Work on many items leaves iterations of the event loop to other requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from ingot.http.json_response import encode_list
from ingot.kernel import slices
from ingot.kernel.pages import Page
from ingot.kernel.slices import map_async_in_slices, map_in_slices

ITEMS = 60


@pytest.fixture(autouse=True)
def one_item_per_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0)


class LoopIterations:
    """Counts iterations of the event loop."""

    def __init__(self) -> None:
        self.count = 0
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self.count += 1
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def stop(self) -> int:
        self._handle.cancel()
        return self.count


async def test_the_event_loop_runs_between_slices() -> None:
    iterations = LoopIterations()
    assert await map_in_slices(str, range(ITEMS)) == [str(number) for number in range(ITEMS)]
    assert iterations.stop() >= ITEMS


async def test_asynchronous_work_is_done_in_slices() -> None:
    async def double(number: int) -> int:
        return 2 * number

    iterations = LoopIterations()
    assert await map_async_in_slices(double, range(ITEMS)) == [2 * number for number in range(ITEMS)]
    assert iterations.stop() >= ITEMS - 1


async def test_few_items_are_processed_at_once() -> None:
    iterations = LoopIterations()
    await map_in_slices(str, range(slices.UNSLICED_ITEMS_MAX))
    assert iterations.stop() == 0


async def test_one_slice_runs_in_each_iteration_of_the_event_loop() -> None:
    iterations = LoopIterations()
    items_by_iteration: Counter[int] = Counter()
    work: Callable[[int], None] = lambda _: items_by_iteration.update([iterations.count])  # noqa: E731
    await asyncio.gather(*(map_in_slices(work, range(ITEMS)) for _ in range(4)))
    iterations.stop()
    assert items_by_iteration.total() == 4 * ITEMS
    assert max(items_by_iteration.values()) == 1


async def test_a_canceled_task_passes_its_turn() -> None:
    tasks = [asyncio.create_task(map_in_slices(str, range(ITEMS))) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(result, list) for result in results] == [True, False, True]


async def test_a_long_list_in_a_response_is_encoded_in_slices() -> None:
    page = Page(items=[{"number": number} for number in range(300)], next_cursor="next")
    iterations = LoopIterations()
    encoded = await encode_list(page, "items")
    assert iterations.stop() >= 30
    assert encoded == msgspec.json.encode(page)
