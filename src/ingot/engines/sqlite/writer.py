"""The one writer thread: drains its queue into one transaction, syncs it, and only then answers.

While one commit is being synced the next commands gather, so the cost of a sync is shared by all that wait
for it; no timer is needed, and an idle store answers a single command at once.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import apsw
import msgspec

from ingot.engines.sqlite.connection import DISK_ERRORS
from ingot.engines.sqlite.tenant_caps import update_buckets
from ingot.engines.sqlite.transaction import AttemptEnd, DeferredAnswer, PendingEffects, Transaction
from ingot.engines.sqlite.writer_state import WriterState
from ingot.jobs.metrics import Load
from ingot.kernel.clock import Clock
from ingot.kernel.commands import Command
from ingot.kernel.errors import IngotError, OutcomeUnknown, StorageFull, StoreBusy, StoreError
from ingot.kernel.logs import report

BATCH_COMMANDS_MAX = 256
GATHER_COMMANDS_MAX = 32
QUEUE_COMMANDS_MAX = 10_000

Handler = Callable[[Transaction, Sequence[Any]], Sequence[Any]]
C = TypeVar("C")
R = TypeVar("R")


def run_each(run: Callable[[Transaction, C], R]) -> Handler:
    """A handler for commands that are rare: each raises before it writes, or succeeds."""

    def handler(tx: Transaction, commands: Sequence[C]) -> list[R | IngotError]:
        answers: list[R | IngotError] = []
        for command in commands:
            try:
                answers.append(run(tx, command))
            except IngotError as error:
                answers.append(error)
        return answers

    return handler


class PendingCommand(msgspec.Struct, eq=False, gc=False):
    """A command and the caller that waits for it."""

    command: Any
    future: asyncio.Future[Any]


class CommitNotice(msgspec.Struct):
    """What to tell on the event loop after a commit."""

    ready: Counter[tuple[str, str]]
    next_maintenance_at: int | None
    attempt_ends: list[AttemptEnd]
    canceled: Counter[str]
    commands: int  # How many were committed together.
    event_tenants: Collection[str] = ()  # Those that have new events.
    removed_tenants: Collection[str] = ()  # Tenants.
    records_changed: bool = False  # Whether some changed.


class Writer:
    """Runs commands in groups. `handlers` says how to run a kind, and in which order kinds run within a group."""

    def __init__(
        self,
        connection: apsw.Connection,
        memory: WriterState,
        *,
        clock: Clock,
        handlers: Mapping[type[Command[Any]], Handler],
        on_commit: Callable[[CommitNotice], None],
    ) -> None:
        self._connection = connection
        self._writer_state = memory
        self._clock = clock
        self._handlers = handlers
        self._on_commit = on_commit
        self._loop = asyncio.get_running_loop()
        self.coalesces = False  # Whether commands wait for others that come in the same turn of the event loop.
        self._unsent: list[PendingCommand] = []  # What was not handed over yet.
        self._submitted = self._started = self._delivered = 0  # Commands, since the start.
        self._queue: queue.SimpleQueue[list[PendingCommand] | None] = queue.SimpleQueue()
        self._stopping = False
        self._batch_started_at: float | None = None  # When the batch that is under way began.
        self._state_is_current = True  # Whether memory says what the file says.
        self._thread = threading.Thread(target=self._run, name="ingot-writer", daemon=True)
        self._thread.start()

    def submit(self, command: Command[Any]) -> asyncio.Future[Any]:
        """Queue a command; the future is done when its transaction is durable.

        Raises `TypeError` for one that no handler runs.
        """
        if type(command) not in self._handlers:
            raise TypeError(f"{type(command).__name__} is not a command that this store runs")
        if asyncio.get_running_loop() is not self._loop:
            raise StoreError("The store was opened on another event loop.", hint="Use it where it was opened.")
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self._stopping:
            answer.set_exception(StoreError("The store is closed."))
        elif self._submitted - self._delivered >= QUEUE_COMMANDS_MAX:
            answer.set_exception(StoreBusy())
        else:
            self._submitted += 1
            if not self.coalesces:
                self._queue.put([PendingCommand(command, answer)])
                return answer
            if not self._unsent:
                self._loop.call_soon(self._send_gathered, 0)
            self._unsent.append(PendingCommand(command, answer))
        return answer

    def _send_gathered(self, seen: int) -> None:
        """Hand over what has come once a turn of the event loop brings no more, or it is many.

        To wake the thread costs more than to gather, and what goes together shares the cost of a commit.
        """
        gathered = len(self._unsent)
        if seen < gathered < GATHER_COMMANDS_MAX:
            self._loop.call_soon(self._send_gathered, gathered)
        elif gathered:
            self._queue.put(self._unsent)
            self._unsent = []

    def load(self) -> Load:
        """How much waits, and how long the batch that is under way has taken so far."""
        began = self._batch_started_at
        seconds = 0.0 if began is None else time.monotonic() - began
        return Load(waiting_commands=self._submitted - self._started, commit_seconds=seconds)

    def stop(self) -> None:
        """Take no more commands; what is queued is still done."""
        self._stopping = True
        self._send_gathered(len(self._unsent))
        self._queue.put(None)

    def join(self) -> None:
        """Wait until the thread has ended. Blocks."""
        self._thread.join()

    # -- on the writer thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        waiting: list[PendingCommand] = []
        stopping = False
        while waiting or not stopping:
            stopping = self._take_queued(waiting) or stopping
            batch, waiting = waiting[:BATCH_COMMANDS_MAX], waiting[BATCH_COMMANDS_MAX:]
            if batch:
                self._batch_started_at, self._started = time.monotonic(), self._started + len(batch)
                try:
                    self._run_batch(batch)
                except Exception as error:  # The thread must live, or everybody waits for ever.
                    self._state_is_current = False
                    report("writer_failed", error)
                    self._fail_batch(batch)
                self._batch_started_at = None

    def _take_queued(self, waiting: list[PendingCommand]) -> bool:
        """Add what is queued; with nothing to do, wait for some. Answers whether it was the last."""
        with suppress(queue.Empty):
            while len(waiting) < BATCH_COMMANDS_MAX:
                more = self._queue.get_nowait() if waiting else self._queue.get()
                if more is None:
                    return True
                waiting += more
        return False

    def _fail_batch(self, batch: list[PendingCommand]) -> None:
        failures: list[Any] = [OutcomeUnknown("The store failed while it worked on this.") for _ in batch]
        told = CommitNotice(Counter(), self._writer_state.next_maintenance_at(), [], Counter(), 0)
        with suppress(RuntimeError):  # The event loop may be gone.
            self._loop.call_soon_threadsafe(self._deliver, batch, failures, told)

    def _run_batch(self, batch: list[PendingCommand]) -> None:
        agenda = self._writer_state.next_maintenance_at()
        try:
            results, staged = self._commit(batch)
            commands = len(batch)
        except Exception as error:
            failure = translate_failure(error)
            results, staged, commands = [failure] * len(batch), PendingEffects(), 0
            self._recover()
            agenda = None  # Whoever looked at it meanwhile may have seen what was undone: tell it anew.
        after = self._writer_state.next_maintenance_at()
        sooner = after if after is not None and (agenda is None or after < agenda) else None
        told = CommitNotice(
            staged.ready,
            sooner,
            staged.attempt_ends,
            staged.canceled,
            commands,
            staged.events,
            staged.removed_tenants,
            staged.records_changed,
        )
        self._loop.call_soon_threadsafe(self._deliver, batch, results, told)

    def _commit(self, batch: list[PendingCommand]) -> tuple[list[Any], PendingEffects]:
        """Run a batch in one transaction: together, or, when one command cannot be run, each by itself."""
        if not self._state_is_current:
            self._recover()
        try:
            return self._transact(batch, together=True)
        except DISK_ERRORS:
            raise
        except Exception as error:
            report("batch_failed", error, commands=len(batch))
            self._recover()
            return self._transact(batch, together=False)

    def _transact(self, batch: list[PendingCommand], *, together: bool) -> tuple[list[Any], PendingEffects]:
        if not self._state_is_current:
            raise StoreError("The store cannot read its file.")
        groups: dict[type, list[int]] = {}
        for place, waiting in enumerate(batch):
            groups.setdefault(type(waiting.command), []).append(place)
        results: list[Any] = [None] * len(batch)
        self._connection.execute("BEGIN IMMEDIATE")
        tx = Transaction(self._connection, self._writer_state, self._clock.micros(), retrying=not together)
        run = _run_together if together else _run_one_by_one
        for kind, handler in self._handlers.items():
            if places := groups.get(kind):
                answers = run(tx, handler, [batch[place].command for place in places])
                for place, answer in zip(places, answers, strict=True):
                    results[place] = answer
        assert self._connection.in_transaction, "the transaction ended before its time"
        tx.flush()
        self._connection.execute("COMMIT")
        update_buckets(tx)
        return results, tx.effects

    def _recover(self) -> None:
        """Undo what is left of a failed transaction, and trust the file only."""
        self._state_is_current = False
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._writer_state.reload()
            self._state_is_current = True
        except Exception as error:
            report("recovery_failed", error)

    # -- on the event loop ----------------------------------------------------------------------------------

    def _deliver(self, batch: list[PendingCommand], results: list[Any], told: CommitNotice) -> None:
        self._delivered += len(batch)
        for waiting, result in zip(batch, results, strict=True):
            if not waiting.future.done():
                _resolve_future(waiting.future, result)
        self._on_commit(told)


def _resolve_future(answer: asyncio.Future[Any], result: Any) -> None:
    try:
        made = result.build() if isinstance(result, DeferredAnswer) else result
    except Exception as error:  # One answer that cannot be made must not keep the others from their callers.
        made = OutcomeUnknown("The change was made, but its answer could not be.")
        report("answer_failed", error)
    if isinstance(made, IngotError):
        answer.set_exception(made)
    else:
        answer.set_result(made)


def _run_together(tx: Transaction, handler: Handler, commands: list[Any]) -> Sequence[Any]:
    return handler(tx, commands)


def _run_one_by_one(tx: Transaction, handler: Handler, commands: list[Any]) -> Sequence[Any]:
    """Each command under a savepoint of its own, so that one cannot spoil another."""
    answers: list[Any] = []
    for command in commands:
        try:
            answers += tx.run_in_savepoint(partial(handler, tx, [command]))
        except DISK_ERRORS:
            raise
        except Exception as error:
            answers.append(translate_failure(error))
    return answers


def translate_failure(error: Exception) -> IngotError:
    """What a failed transaction means to those who wait for it."""
    match error:
        case IngotError():
            return error
        case apsw.FullError():
            return StorageFull()
        case apsw.IOError():
            report("commit_failed", error)
            return OutcomeUnknown()
        case _:
            report("transaction_failed", error)
            return StoreError(f"The store failed: {error}")
