"""Batching of commands. While batches are running, new commands form the next one, so no timer is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from ingot.engines.postgres.command_scope import SCOPE, CommandScope, next_deadline
from ingot.engines.postgres.connection import SIGNATURE_ERRORS, is_unavailable, translate_error
from ingot.engines.tenant_queues import QueuedCommand, TenantQueues
from ingot.kernel.errors import IngotError, OutcomeUnknown, StoreBusy, StoreError
from ingot.kernel.failures import failures
from ingot.kernel.logs import detached_context

IN_FLIGHT_MAX: Final = 4
IN_FLIGHT_LARGE_MAX: Final = 2
BATCH_ROWS_MAX: Final = 500
RUN_SECONDS_MIN: Final = 10.0  # A command that waits until less time is left is not sent.
EXPIRY_INTERVAL_SECONDS: Final = 0.25

C = TypeVar("C")
A = TypeVar("A")

_deadline_of = attrgetter("deadline")
RunBatch = Callable[[list[C]], Awaitable[Sequence[A | IngotError]]]


class CommandBatcher(Generic[C, A]):
    """Runs commands of one kind in batches.

    `weigh` returns the number of rows that a command counts for, and `rows_max` the maximum for a batch. Each batch
    writes some rows once per tenant, so fewer and larger batches are cheaper when there are many tenants.
    `tenant_of` returns the tenant of a command. `in_flight_max` limits the concurrent batches that contain commands of
    one tenant, and one more batch can run with commands of other tenants only. Use 1 for commands that lock the same
    rows of their tenant: concurrent batches would only wait for each other. `on_commit` is called with the number of
    commands in each committed batch.

    Every command ends by its deadline, whatever the database does. A batch has the earliest deadline of its commands.
    """

    def __init__(
        self,
        run: RunBatch[C, A],
        *,
        weigh: Callable[[C], int],
        tenant_of: Callable[[C], str | None] = lambda _: None,
        rows_max: Callable[[], int] = lambda: BATCH_ROWS_MAX,
        in_flight_max: int = IN_FLIGHT_MAX,
        on_commit: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._run = run
        self._tenant_of = tenant_of
        self._rows_max = rows_max
        self._in_flight_max = in_flight_max
        self._on_commit = on_commit
        self._queued: TenantQueues[C, A] = TenantQueues(weigh)
        self._is_start_scheduled = False
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def waiting_commands(self) -> int:
        """The number of commands that have not been started."""
        return self._queued.size

    @property
    def is_idle(self) -> bool:
        """Whether no commands are queued or running."""
        return not self._queued.size and not self._running

    def submit(self, command: C) -> asyncio.Future[A]:
        """Queue a command. The future completes when its transaction is durable."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[A] = loop.create_future()
        if self._closing:
            future.set_exception(StoreError("The store is closed."))
        elif not self._queued.add(QueuedCommand(command, future, next_deadline(), self._tenant_of(command))):
            future.set_exception(StoreBusy())
        elif not self._is_start_scheduled:
            self._is_start_scheduled = True
            loop.call_soon(self._start)  # Commands of the same event loop turn join the batch.
        return future

    async def close(self) -> None:
        """Reject new commands and finish the queued ones."""
        self._closing = True
        while self._queued.size or self._running:
            self._start()
            await asyncio.wait(self._running)
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()

    def _start(self) -> None:
        self._is_start_scheduled = False
        rows_max = self._rows_max()
        tenant_batches_max = self._in_flight_max if rows_max <= BATCH_ROWS_MAX else IN_FLIGHT_LARGE_MAX
        while self._queued.size and len(self._running) <= tenant_batches_max:
            batch = self._queued.take_batch(rows_max, batches_max=tenant_batches_max)
            if not batch:  # Only tenants without a free slot have commands.
                break
            task = asyncio.create_task(self._run_batch(batch), context=detached_context())
            self._running.add(task)
            task.add_done_callback(partial(self._on_done, batch))
        if self._queued.size and self._expiry_timer is None:
            self._schedule_expiry()

    def _schedule_expiry(self) -> None:
        loop = asyncio.get_running_loop()
        first = min(map(_deadline_of, self._queued)) - RUN_SECONDS_MIN
        self._expiry_timer = loop.call_at(max(first, loop.time() + EXPIRY_INTERVAL_SECONDS), self._expire)

    def _expire(self) -> None:
        """Reject the commands that would begin too late, because the running batches take too long."""
        latest = asyncio.get_running_loop().time() + RUN_SECONDS_MIN
        for queued in self._queued.take_expired(latest):
            deliver(queued.future, StoreBusy("The database did not respond in time, and the command was not sent."))
        self._expiry_timer = None
        if self._queued.size:
            self._schedule_expiry()

    def _on_done(self, batch: list[QueuedCommand[C, A]], task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._queued.end_batch(batch)
        self._start()

    async def _run_batch(self, batch: list[QueuedCommand[C, A]]) -> None:
        """Run a batch and deliver its results. Every command ends, even if something unexpected fails."""
        try:
            await self._run_and_deliver(batch)
        except BaseException as error:
            for queued in batch:
                deliver(queued.future, OutcomeUnknown("The result of the command was lost."))
            if not isinstance(error, Exception):
                raise
            failures.log("answer_failed", error)

    async def _run_and_deliver(self, batch: list[QueuedCommand[C, A]]) -> None:
        """Run a batch. If one of its commands makes it fail, run each command alone."""
        SCOPE.set(CommandScope(min(map(_deadline_of, batch))))
        results: Sequence[A | IngotError]
        try:
            results = await self._run([queued.command for queued in batch])
            self._on_commit(len(batch))
        except Exception as error:
            # After a lost response, a command that was carried out would be refused if it ran again.
            is_final = isinstance(error, OutcomeUnknown) or isinstance(error.__cause__, SIGNATURE_ERRORS)
            if len(batch) > 1 and not is_final and not is_unavailable(error):
                failures.log("batch_failed", error, commands=len(batch))
                for queued in batch:
                    await self._run_batch([queued])
                return
            results = _error_for_each(translate_error(error, action="used"), len(batch))
        for queued, result in zip(batch, results, strict=True):
            deliver(queued.future, result)


def _error_for_each(error: IngotError, commands: int) -> list[IngotError]:
    """Return an error for each command, because each caller raises its own, which adds a traceback to it."""
    return [error, *(_copy_error(error) for _ in range(commands - 1))]


def _copy_error(error: IngotError) -> IngotError:
    """Copy an error without its traceback. Its constructor is not called, because it may need other arguments."""
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__, __notes__=[*error.__notes__])
    copy.__cause__ = error.__cause__
    return copy


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
