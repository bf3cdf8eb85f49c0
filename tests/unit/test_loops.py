"""Loops: starting, waiting, stopping, and errors, which never end a loop."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from ingot.kernel.loops import Loop


class CountingLoop(Loop):
    """Counts its rounds, waits for an event after each, and fails if `error` is set."""

    name = "tests.counting"
    pause_after_error_seconds_max = 0.001

    def __init__(self) -> None:
        super().__init__()
        self.rounds = 0
        self.error: Exception | None = None
        self.ran = asyncio.Event()
        self.resume = asyncio.Event()

    async def run_once(self) -> int:
        self.rounds += 1
        self.ran.set()
        if self.error is not None:
            raise self.error
        return self.rounds

    async def wait(self) -> None:
        await self.resume.wait()
        self.resume.clear()

    async def next_round(self) -> None:
        """Wait for one more round."""
        async with asyncio.timeout(30):
            await self.ran.wait()
        self.ran.clear()


async def test_a_loop_runs_and_waits_repeatedly() -> None:
    loop = CountingLoop()
    loop.start()
    for expected in (1, 2, 3):
        await loop.next_round()
        assert loop.rounds == expected
        loop.resume.set()
    await loop.stop()


async def test_a_loop_that_was_not_started_does_nothing() -> None:
    loop = CountingLoop()
    await asyncio.sleep(0)
    assert loop.rounds == 0
    await loop.stop()


async def test_an_error_is_logged_with_its_count_and_the_loop_continues() -> None:
    loop = CountingLoop()
    loop.error = ValueError("broken")
    with capture_logs() as logs:
        loop.start()
        for _ in range(3):
            await loop.next_round()
        loop.error = None
        await loop.next_round()
        loop.resume.set()
        await loop.next_round()
        loop.error = ValueError("again")
        loop.resume.set()
        await loop.next_round()
        await loop.next_round()
        await loop.stop()
    failures = [(entry["loop"], entry["failures_in_a_row"]) for entry in logs if entry["event"] == "loop_failed"]
    assert failures[:3] == [("tests.counting", 1), ("tests.counting", 2), ("tests.counting", 3)]
    assert failures[3] == ("tests.counting", 1)
    assert {entry["log_level"] for entry in logs} == {"error"}


async def test_an_error_while_waiting_does_not_end_the_loop() -> None:
    class FailingWait(CountingLoop):
        async def wait(self) -> None:
            raise OSError("cannot wait")

    loop = FailingWait()
    with capture_logs() as logs:
        loop.start()
        for _ in range(3):
            await loop.next_round()
        await loop.stop()
    assert len([entry for entry in logs if entry["event"] == "loop_failed"]) >= 2


async def test_stopping_twice_is_allowed() -> None:
    loop = CountingLoop()
    loop.start()
    await loop.next_round()
    await loop.stop()
    await loop.stop()
    assert loop.rounds == 1


async def test_a_stopped_loop_can_be_started_again() -> None:
    loop = CountingLoop()
    loop.start()
    await loop.next_round()
    await loop.stop()
    loop.resume.set()
    await asyncio.sleep(0)
    assert loop.rounds == 1
    loop.resume.clear()
    loop.start()
    await loop.next_round()
    assert loop.rounds == 2
    await loop.stop()


async def test_stop_waits_for_the_end_of_the_current_round() -> None:
    ended = asyncio.Event()

    class Slow(CountingLoop):
        async def run_once(self) -> int:
            self.ran.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.set()
            return 0

    loop = Slow()
    loop.start()
    await loop.next_round()
    await loop.stop()
    assert ended.is_set()


async def test_a_running_loop_cannot_be_started_again() -> None:
    loop = CountingLoop()
    loop.start()
    with pytest.raises(AssertionError):
        loop.start()
    await loop.stop()


async def test_canceling_a_stop_raises_cancellation() -> None:
    release = asyncio.Event()

    class Stubborn(CountingLoop):
        async def run_once(self) -> int:
            self.ran.set()
            try:
                await asyncio.Event().wait()
            finally:
                await release.wait()
            return 0

    loop = Stubborn()
    loop.start()
    await loop.next_round()
    stopping = asyncio.create_task(loop.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait([stopping], timeout=30)
    release.set()
    assert stopping.cancelled()


async def test_a_loop_can_start_with_a_delay() -> None:
    class Late(CountingLoop):
        def initial_delay_seconds(self) -> float:
            return 3600.0

    prompt, late = CountingLoop(), Late()
    for loop in (late, prompt):
        loop.start()
    await prompt.next_round()
    assert late.rounds == 0
    for loop in (late, prompt):
        await loop.stop()
