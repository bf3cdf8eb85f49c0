"""Calls of one kind go together: while some batches are under way the next gathers, and no timer is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Final, Generic, TypeVar

from ingot.engines.postgres.connection import UNREACHABLE_ERRORS, translate_error
from ingot.kernel.errors import IngotError, StoreBusy, StoreError
from ingot.kernel.logs import detached_context, report

IN_FLIGHT_MAX: Final = 4
IN_FLIGHT_LARGE_MAX: Final = 2
BATCH_ROWS_MAX: Final = 500
QUEUED_COMMANDS_MAX: Final = 10_000

C = TypeVar("C")
A = TypeVar("A")

RunBatch = Callable[[list[C]], Awaitable[Sequence[A | IngotError]]]


class CommandBatcher(Generic[C, A]):
    """Runs commands of one kind in batches. `weigh` says how many rows a command stands for.

    `rows_max` says how many go together. What many tenants share is written once for each of them, so that fewer and
    larger batches are better there. `in_flight_max` says how many batches are under way at a time: what waits for the
    same rows is better off in one batch. `told` is called with the number of commands that were committed together.
    """

    def __init__(
        self,
        run: RunBatch[C, A],
        *,
        weigh: Callable[[C], int],
        rows_max: Callable[[], int] = lambda: BATCH_ROWS_MAX,
        in_flight_max: int = IN_FLIGHT_MAX,
        on_commit: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._run = run
        self._weigh = weigh
        self._rows_max = rows_max
        self._in_flight_max = in_flight_max
        self._on_commit = on_commit
        self._queued: list[tuple[C, asyncio.Future[A]]] = []
        self._running: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def waiting_commands(self) -> int:
        """How many commands were not begun yet."""
        return len(self._queued)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not self._queued and not self._running

    def submit(self, command: C) -> asyncio.Future[A]:
        """Queue a command; the future is done when its transaction is durable."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[A] = loop.create_future()
        if self._closing:
            answer.set_exception(StoreError("The store is closed."))
        elif len(self._queued) >= QUEUED_COMMANDS_MAX:
            answer.set_exception(StoreBusy())
        else:
            self._queued.append((command, answer))
            if len(self._queued) == 1:
                loop.call_soon(self._start)  # What comes in the same turn of the loop goes along.
        return answer

    async def close(self) -> None:
        """Take no more commands, and finish those that were queued."""
        self._closing = True
        while self._queued or self._running:
            self._start()
            await asyncio.wait(self._running)

    def _start(self) -> None:
        rows_max = self._rows_max()
        in_flight_max = self._in_flight_max if rows_max <= BATCH_ROWS_MAX else IN_FLIGHT_LARGE_MAX
        while self._queued and len(self._running) < in_flight_max:
            rows, count = 0, 0
            for command, _ in self._queued:
                rows += self._weigh(command)
                if count and rows > rows_max:
                    break
                count += 1
            batch, self._queued = self._queued[:count], self._queued[count:]
            task = asyncio.create_task(self._run_batch(batch), context=detached_context())
            self._running.add(task)
            task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._start()

    async def _run_batch(self, batch: list[tuple[C, asyncio.Future[A]]]) -> None:
        """Run a batch together, or, when one of its commands makes it fail, each by itself."""
        results: Sequence[A | IngotError]
        try:
            results = await self._run([command for command, _ in batch])
            self._on_commit(len(batch))
        except Exception as error:
            if len(batch) > 1 and not isinstance(error.__cause__, UNREACHABLE_ERRORS):
                report("batch_failed", error, commands=len(batch))
                for waiting in batch:
                    await self._run_batch([waiting])
                return
            results = [translate_error(error, action="used")]
        for (_, answer), result in zip(batch, results, strict=True):
            deliver(answer, result)


async def in_turns(
    commands: Sequence[C],
    name: Callable[[C], Hashable],
    send: Callable[[list[C]], Awaitable[Sequence[A | None]]],
) -> list[A]:
    """Send commands together, no two of the same name at a time. `None` answers one that has to be sent again."""
    answers: dict[int, A] = {}
    waiting = list(range(len(commands)))
    while waiting:
        named: dict[Hashable, int] = {}
        for place in waiting:
            named.setdefault(name(commands[place]), place)
        together = list(named.values())
        found = await send([commands[place] for place in together])
        answers |= {place: answer for place, answer in zip(together, found, strict=True) if answer is not None}
        waiting = [place for place in waiting if place not in answers]
    return [answers[place] for place in range(len(commands))]


def deliver(answer: asyncio.Future[Any], result: Any) -> None:
    """Give a caller that still waits its result or its error."""
    if answer.done():
        return
    if isinstance(result, IngotError):
        answer.set_exception(result)
    else:
        answer.set_result(result)
