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

from ingot.engines.sqlite.caps import keep_levels
from ingot.engines.sqlite.connection import DISK_ERRORS
from ingot.engines.sqlite.memory import Memory
from ingot.engines.sqlite.transaction import End, Later, Staged, Transaction
from ingot.jobs.figures import Load
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


def each(run: Callable[[Transaction, C], R]) -> Handler:
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


class Waiting(msgspec.Struct, eq=False, gc=False):
    """A command and the caller that waits for it."""

    command: Any
    answer: asyncio.Future[Any]


class Told(msgspec.Struct):
    """What to tell on the event loop after a commit."""

    ready: Counter[tuple[str, str]]
    agenda: int | None
    ended: list[End]
    canceled: Counter[str]
    commands: int  # How many were committed together.
    tenants: Collection[str] = ()  # Those that have new events.
    removed: Collection[str] = ()  # Tenants.
    records: bool = False  # Whether some changed.


class Writer:
    """Runs commands in groups. `handlers` says how to run a kind, and in which order kinds run within a group."""

    def __init__(
        self,
        connection: apsw.Connection,
        memory: Memory,
        *,
        clock: Clock,
        handlers: Mapping[type[Command[Any]], Handler],
        tell: Callable[[Told], None],
    ) -> None:
        self._connection = connection
        self._memory = memory
        self._clock = clock
        self._handlers = handlers
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self.gathers = False  # Whether commands wait for others that come in the same turn of the event loop.
        self._gathered: list[Waiting] = []  # What was not handed over yet.
        self._submitted = self._begun = self._delivered = 0  # Commands, since the start.
        self._queue: queue.SimpleQueue[list[Waiting] | None] = queue.SimpleQueue()
        self._stopping = False
        self._began: float | None = None  # When the batch that is under way began.
        self._trusted = True  # Whether memory says what the file says.
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
            if not self.gathers:
                self._queue.put([Waiting(command, answer)])
                return answer
            if not self._gathered:
                self._loop.call_soon(self._hand_over, 0)
            self._gathered.append(Waiting(command, answer))
        return answer

    def _hand_over(self, seen: int) -> None:
        """Hand over what has come once a turn of the event loop brings no more, or it is many.

        To wake the thread costs more than to gather, and what goes together shares the cost of a commit.
        """
        gathered = len(self._gathered)
        if seen < gathered < GATHER_COMMANDS_MAX:
            self._loop.call_soon(self._hand_over, gathered)
        elif gathered:
            self._queue.put(self._gathered)
            self._gathered = []

    def load(self) -> Load:
        """How much waits, and how long the batch that is under way has taken so far."""
        began = self._began
        seconds = 0.0 if began is None else time.monotonic() - began
        return Load(waiting_commands=self._submitted - self._begun, commit_seconds=seconds)

    def end(self) -> None:
        """Take no more commands; what is queued is still done."""
        self._stopping = True
        self._hand_over(len(self._gathered))
        self._queue.put(None)

    def join(self) -> None:
        """Wait until the thread has ended. Blocks."""
        self._thread.join()

    # -- on the writer thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        waiting: list[Waiting] = []
        stopping = False
        while waiting or not stopping:
            stopping = self._take(waiting) or stopping
            batch, waiting = waiting[:BATCH_COMMANDS_MAX], waiting[BATCH_COMMANDS_MAX:]
            if batch:
                self._began, self._begun = time.monotonic(), self._begun + len(batch)
                try:
                    self._answer(batch)
                except Exception as error:  # The thread must live, or everybody waits for ever.
                    self._trusted = False
                    report("writer_failed", error)
                    self._give_up(batch)
                self._began = None

    def _take(self, waiting: list[Waiting]) -> bool:
        """Add what is queued; with nothing to do, wait for some. Answers whether it was the last."""
        with suppress(queue.Empty):
            while len(waiting) < BATCH_COMMANDS_MAX:
                more = self._queue.get_nowait() if waiting else self._queue.get()
                if more is None:
                    return True
                waiting += more
        return False

    def _give_up(self, batch: list[Waiting]) -> None:
        failures: list[Any] = [OutcomeUnknown("The store failed while it worked on this.") for _ in batch]
        told = Told(Counter(), self._memory.agenda(), [], Counter(), 0)
        with suppress(RuntimeError):  # The event loop may be gone.
            self._loop.call_soon_threadsafe(self._deliver, batch, failures, told)

    def _answer(self, batch: list[Waiting]) -> None:
        agenda = self._memory.agenda()
        try:
            results, staged = self._commit(batch)
            commands = len(batch)
        except Exception as error:
            failure = explain_failure(error)
            results, staged, commands = [failure] * len(batch), Staged(), 0
            self._recover()
            agenda = None  # Whoever looked at it meanwhile may have seen what was undone: tell it anew.
        after = self._memory.agenda()
        sooner = after if after is not None and (agenda is None or after < agenda) else None
        told = Told(
            staged.ready, sooner, staged.ended, staged.canceled, commands, staged.events, staged.removed, staged.records
        )
        self._loop.call_soon_threadsafe(self._deliver, batch, results, told)

    def _commit(self, batch: list[Waiting]) -> tuple[list[Any], Staged]:
        """Run a batch in one transaction: together, or, when one command cannot be run, each by itself."""
        if not self._trusted:
            self._recover()
        try:
            return self._transact(batch, together=True)
        except DISK_ERRORS:
            raise
        except Exception as error:
            report("batch_failed", error, commands=len(batch))
            self._recover()
            return self._transact(batch, together=False)

    def _transact(self, batch: list[Waiting], *, together: bool) -> tuple[list[Any], Staged]:
        if not self._trusted:
            raise StoreError("The store cannot read its file.")
        groups: dict[type, list[int]] = {}
        for place, waiting in enumerate(batch):
            groups.setdefault(type(waiting.command), []).append(place)
        results: list[Any] = [None] * len(batch)
        self._connection.execute("BEGIN IMMEDIATE")
        tx = Transaction(self._connection, self._memory, self._clock.micros(), careful=not together)
        run = _together if together else _one_by_one
        for kind, handler in self._handlers.items():
            if places := groups.get(kind):
                answers = run(tx, handler, [batch[place].command for place in places])
                for place, answer in zip(places, answers, strict=True):
                    results[place] = answer
        assert self._connection.in_transaction, "the transaction ended before its time"
        tx.flush()
        self._connection.execute("COMMIT")
        keep_levels(tx)
        return results, tx.staged

    def _recover(self) -> None:
        """Undo what is left of a failed transaction, and trust the file only."""
        self._trusted = False
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._memory.reload()
            self._trusted = True
        except Exception as error:
            report("recovery_failed", error)

    # -- on the event loop ----------------------------------------------------------------------------------

    def _deliver(self, batch: list[Waiting], results: list[Any], told: Told) -> None:
        self._delivered += len(batch)
        for waiting, result in zip(batch, results, strict=True):
            if not waiting.answer.done():
                _finish(waiting.answer, result)
        self._tell(told)


def _finish(answer: asyncio.Future[Any], result: Any) -> None:
    try:
        made = result.make() if isinstance(result, Later) else result
    except Exception as error:  # One answer that cannot be made must not keep the others from their callers.
        made = OutcomeUnknown("The change was made, but its answer could not be.")
        report("answer_failed", error)
    if isinstance(made, IngotError):
        answer.set_exception(made)
    else:
        answer.set_result(made)


def _together(tx: Transaction, handler: Handler, commands: list[Any]) -> Sequence[Any]:
    return handler(tx, commands)


def _one_by_one(tx: Transaction, handler: Handler, commands: list[Any]) -> Sequence[Any]:
    """Each command under a savepoint of its own, so that one cannot spoil another."""
    answers: list[Any] = []
    for command in commands:
        try:
            answers += tx.attempt(partial(handler, tx, [command]))
        except DISK_ERRORS:
            raise
        except Exception as error:
            answers.append(explain_failure(error))
    return answers


def explain_failure(error: Exception) -> IngotError:
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
