"""Batching of commands. While batches are running, new commands form the next one, so no timer is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Final, Generic, TypeVar

from ingot.engines.postgres.connection import SIGNATURE_ERRORS, UNREACHABLE_ERRORS, translate_error
from ingot.kernel.errors import IngotError, StoreBusy, StoreError
from ingot.kernel.failures import failures
from ingot.kernel.logs import detached_context

IN_FLIGHT_MAX: Final = 4
IN_FLIGHT_LARGE_MAX: Final = 2
BATCH_ROWS_MAX: Final = 500
QUEUED_COMMANDS_MAX: Final = 10_000

C = TypeVar("C")
A = TypeVar("A")

RunBatch = Callable[[list[C]], Awaitable[Sequence[A | IngotError]]]


class CommandBatcher(Generic[C, A]):
    """Runs commands of one kind in batches.

    `weigh` returns the number of rows that a command counts for, and `rows_max` the maximum for a batch. Each batch
    writes some rows once per tenant, so fewer and larger batches are cheaper when there are many tenants.
    `in_flight_max` limits concurrent batches. Use 1 for commands that lock the same rows: concurrent batches would only
    wait for each other. `on_commit` is called with the number of commands in each committed batch.
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
        """The number of commands that have not been started."""
        return len(self._queued)

    @property
    def is_idle(self) -> bool:
        """Whether no commands are queued or running."""
        return not self._queued and not self._running

    def submit(self, command: C) -> asyncio.Future[A]:
        """Queue a command. The future completes when its transaction is durable."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[A] = loop.create_future()
        if self._closing:
            future.set_exception(StoreError("The store is closed."))
        elif len(self._queued) >= QUEUED_COMMANDS_MAX:
            future.set_exception(StoreBusy())
        else:
            self._queued.append((command, future))
            if len(self._queued) == 1:
                loop.call_soon(self._start)  # Commands of the same event loop turn join the batch.
        return future

    async def close(self) -> None:
        """Reject new commands and finish the queued ones."""
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
        """Run a batch. If one of its commands makes it fail, run each command alone."""
        results: Sequence[A | IngotError]
        try:
            results = await self._run([command for command, _ in batch])
            self._on_commit(len(batch))
        except Exception as error:
            if len(batch) > 1 and not isinstance(error.__cause__, (*UNREACHABLE_ERRORS, *SIGNATURE_ERRORS)):
                failures.log("batch_failed", error, commands=len(batch))
                for entry in batch:
                    await self._run_batch([entry])
                return
            results = [translate_error(error, action="used")] * len(batch)
        for (_, future), result in zip(batch, results, strict=True):
            deliver(future, result)


async def send_distinct(
    commands: Sequence[C],
    key: Callable[[C], Hashable],
    send: Callable[[list[C]], Awaitable[Sequence[A | None]]],
) -> list[A]:
    """Send commands in batches in which each key occurs once, and return the answers in order.

    Commands with the same key are sent in the given order. A command whose answer is `None` is sent again.
    """
    answers: dict[int, A] = {}
    unanswered = list(range(len(commands)))
    while unanswered:
        first_by_key: dict[Hashable, int] = {}
        for index in unanswered:
            first_by_key.setdefault(key(commands[index]), index)
        batch = list(first_by_key.values())
        results = await send([commands[index] for index in batch])
        answers |= {index: answer for index, answer in zip(batch, results, strict=True) if answer is not None}
        unanswered = [index for index in unanswered if index not in answers]
    return [answers[index] for index in range(len(commands))]


def deliver(future: asyncio.Future[Any], result: Any) -> None:
    """Complete a future with a result or an error, unless its caller was canceled."""
    if future.done():
        return
    if isinstance(result, IngotError):
        future.set_exception(result)
    else:
        future.set_result(result)
