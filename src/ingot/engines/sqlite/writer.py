"""The writer thread: runs queued commands in one transaction, syncs it, and only then answers.

While one commit is being synced, the next commands gather, so all waiting commands share the cost of a sync. No timer
is needed, and an idle store answers a single command at once.
"""

from __future__ import annotations

import asyncio
import math
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

from ingot.engines.command_tenants import count_items, tenant_of
from ingot.engines.sqlite.connection import DISK_ERRORS, LOG_PAGES
from ingot.engines.sqlite.disk_reserve import DiskReserve
from ingot.engines.sqlite.tenant_caps import update_buckets
from ingot.engines.sqlite.transaction import AttemptEnd, DeferredAnswer, PendingEffects, Transaction
from ingot.engines.sqlite.writer_state import WriterState
from ingot.engines.tenant_queues import QUEUED_COMMANDS_MAX, QueuedCommand, TenantQueues
from ingot.jobs.metrics import Load
from ingot.jobs.model import LostLease
from ingot.jobs.ports import CancelJob, ChangeJob, RetryJob
from ingot.kernel.clock import Clock
from ingot.kernel.commands import Command
from ingot.kernel.errors import IngotError, OutcomeUnknown, StorageFull, StoreBusy, StoreError
from ingot.kernel.failures import failures
from ingot.kernel.slices import UNSLICED_ITEMS_MAX, map_in_slices

BATCH_COMMANDS_MAX = 256
ITEMS_PER_COMMAND = 4  # A command with more items counts as several, so that commands share a batch of 1,000 items.
SHARED_WEIGHT_MAX = 25  # A command that counts for more, such as 100 new jobs, shares its batch with no other.
# Commands that run one by one, with several statements each.
COSTLY_COMMANDS = (CancelJob, RetryJob, ChangeJob)
COSTLY_WEIGHT = 8
GATHER_COMMANDS_MAX = 32
LOW_SPACE_LOG_PAGES = 100  # Size of the log at which it is checkpointed while the disk is full.

Handler = Callable[[Transaction, Sequence[Any]], Sequence[Any]]
C = TypeVar("C")
R = TypeVar("R")


def run_each(run: Callable[[Transaction, C], R]) -> Handler:
    """Return a handler for rare commands, of which each raises before it writes, or succeeds."""

    def handler(tx: Transaction, commands: Sequence[C]) -> list[R | IngotError]:
        answers: list[R | IngotError] = []
        for command in commands:
            try:
                answers.append(run(tx, command))
            except IngotError as error:
                answers.append(error)
        return answers

    return handler


Pending = QueuedCommand[Any, Any]
NO_DEADLINE = math.inf


class CommitNotice(msgspec.Struct):
    """The effects of a commit that listeners are notified of."""

    ready: Counter[tuple[str, str]]
    next_maintenance_at: int | None
    attempt_ends: list[AttemptEnd]
    canceled: Counter[str]
    commands: int  # Number of commands in the commit.
    event_tenants: Collection[str] = ()  # Tenants with new events.
    removed_tenants: Collection[str] = ()
    records_changed: bool = False
    lost_leases: Sequence[LostLease] = ()


class Writer:
    """Runs commands in groups. `handlers` maps kinds of commands to their handlers, in the order in which they run.

    When the disk is full, space of the `reserve` is released, and `growing` kinds of commands are refused until the
    reserve is filled again.
    """

    def __init__(
        self,
        connection: apsw.Connection,
        writer_state: WriterState,
        *,
        clock: Clock,
        handlers: Mapping[type[Command[Any]], Handler],
        growing: Collection[type[Command[Any]]],
        reserve: DiskReserve,
        on_commit: Callable[[CommitNotice], None],
    ) -> None:
        self._connection = connection
        self._writer_state = writer_state
        self._clock = clock
        self._handlers = handlers
        self._growing = growing
        self._reserve = reserve
        self._on_commit = on_commit
        self._loop = asyncio.get_running_loop()
        # Whether commands wait for others that are submitted in the same iteration of the event loop.
        self.coalesces = False
        self._unsent: list[Pending] = []  # Not passed to the thread yet.
        self._submitted = self._started = self._delivered = 0  # Numbers of commands since the start.
        self._undelivered_by_tenant: Counter[str | None] = Counter()
        self._answer_tasks: set[asyncio.Task[None]] = set()
        self._queue: queue.SimpleQueue[list[Pending] | None] = queue.SimpleQueue()
        self._stopping = False
        self._batch_started_at: float | None = None  # When the current batch began.
        self._state_is_current = True  # Whether the writer state matches the file.
        self._thread = threading.Thread(target=self._run, name="ingot-writer", daemon=True)
        self._thread.start()

    def submit(self, command: Command[Any]) -> asyncio.Future[Any]:
        """Queue a command. The future is done when its transaction is durable.

        Raises `TypeError` if the command has no handler.
        """
        if type(command) not in self._handlers:
            raise TypeError(f"{type(command).__name__} is not a command that this store runs")
        if asyncio.get_running_loop() is not self._loop:
            raise StoreError(
                "The store was opened on another event loop.", hint="Use the store on the event loop that opened it."
            )
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._stopping:
            future.set_exception(StoreError("The store is closed."))
            return future
        tenant = tenant_of(command)
        undelivered = self._undelivered_by_tenant[tenant]
        # A tenant may have as many waiting commands as there is space left for others.
        if undelivered and undelivered >= QUEUED_COMMANDS_MAX - (self._submitted - self._delivered):
            future.set_exception(StoreBusy())
            return future
        self._undelivered_by_tenant[tenant] = undelivered + 1
        self._submitted += 1
        pending = Pending(command, future, NO_DEADLINE, tenant)
        if not self.coalesces:
            self._queue.put([pending])
            return future
        if not self._unsent:
            self._loop.call_soon(self._send_gathered, 0)
        self._unsent.append(pending)
        return future

    def _send_gathered(self, previous_count: int) -> None:
        """Pass the gathered commands to the thread, once an iteration of the event loop adds none or there are many.

        Waking the thread costs more than gathering, and commands that are sent together share the cost of a commit.
        """
        count = len(self._unsent)
        if previous_count < count < GATHER_COMMANDS_MAX:
            self._loop.call_soon(self._send_gathered, count)
        elif count:
            self._queue.put(self._unsent)
            self._unsent = []

    def load(self) -> Load:
        """Return the number of waiting commands, and how long the current batch has taken so far."""
        started_at = self._batch_started_at
        seconds = 0.0 if started_at is None else time.monotonic() - started_at
        return Load(waiting_commands=self._submitted - self._started, commit_seconds=seconds)

    def stop(self) -> None:
        """Accept no more commands. Queued commands still run."""
        self._stopping = True
        self._send_gathered(len(self._unsent))
        self._queue.put(None)

    def join(self) -> None:
        """Wait until the thread has ended. Blocks."""
        self._thread.join()

    # -- on the writer thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        waiting: TenantQueues[Any, Any] = TenantQueues(_weigh, shared_rows_max=SHARED_WEIGHT_MAX)
        stopping = False
        while waiting.size or not stopping:
            stopping = self._take_queued(waiting) or stopping
            batch = waiting.take_batch(BATCH_COMMANDS_MAX, batches_max=1)
            waiting.end_batch(batch)
            if batch:
                started_at = self._batch_started_at = time.monotonic()
                self._started += len(batch)
                try:
                    self._run_batch(batch)
                except Exception as error:  # If the thread ended, all callers would wait forever.
                    self._state_is_current = False
                    failures.log("writer_failed", error)
                    self._fail_batch(batch)
                self._batch_started_at = None
                self._writer_state.sweep_guard.record_call(time.monotonic() - started_at, self._clock.micros())

    def _take_queued(self, waiting: TenantQueues[Any, Any]) -> bool:
        """Add all queued commands to `waiting`. If both are empty, block. Return whether the writer was stopped."""
        with suppress(queue.Empty):
            while True:
                queued = self._queue.get_nowait() if waiting.size else self._queue.get()
                if queued is None:
                    return True
                for pending in queued:
                    is_added = waiting.add(pending)
                    assert is_added, "`submit` accepts no more commands than fit"
        return False

    def _fail_batch(self, batch: list[Pending]) -> None:
        failures: list[Any] = [OutcomeUnknown("The store failed while it ran this command.") for _ in batch]
        notice = CommitNotice(Counter(), self._writer_state.next_maintenance_at(), [], Counter(), 0)
        with suppress(RuntimeError):  # The event loop may be closed.
            self._loop.call_soon_threadsafe(self._deliver, batch, failures, notice)

    def _run_batch(self, batch: list[Pending]) -> None:
        accepted, refused = batch, list[Pending]()
        if self._reserve.is_used:
            is_filled = self._reserve.fill()
            # The log is checkpointed before it grows. Its usual size would use up the reserve.
            self._connection.wal_autocheckpoint(LOG_PAGES if is_filled else LOW_SPACE_LOG_PAGES)
            if not is_filled:
                accepted = [pending for pending in batch if type(pending.command) not in self._growing]
                refused = [pending for pending in batch if type(pending.command) in self._growing]
        scheduled_at = self._writer_state.next_maintenance_at()
        try:
            results, effects = self._commit(accepted) if accepted else ([], PendingEffects())
            commands = len(accepted)
        except Exception as error:
            if isinstance(error, apsw.FullError) and self._reserve.release():
                self._recover()
                self._run_batch(batch)
                return
            failure = translate_failure(error)
            results, effects, commands = [failure] * len(accepted), PendingEffects(), 0
            self._recover()
            scheduled_at = None  # A listener may have read a time that was rolled back, so notify again.
        next_at = self._writer_state.next_maintenance_at()
        rescheduled_at = next_at if next_at is not None and (scheduled_at is None or next_at < scheduled_at) else None
        notice = CommitNotice(
            effects.ready,
            rescheduled_at,
            effects.attempt_ends,
            effects.canceled,
            commands,
            effects.events,
            effects.removed_tenants,
            effects.records_changed,
            effects.lost_leases,
        )
        if refused:
            results = [*results, *(StorageFull() for _ in refused)]
        self._loop.call_soon_threadsafe(self._deliver, accepted + refused if refused else batch, results, notice)

    def _commit(self, batch: list[Pending]) -> tuple[list[Any], PendingEffects]:
        """Run a batch in one transaction: all commands together or, if that fails, each under a savepoint."""
        if not self._state_is_current:
            self._recover()
        try:
            return self._transact(batch, together=True)
        except DISK_ERRORS:
            raise
        except Exception as error:
            failures.log("batch_failed", error, commands=len(batch))
            self._recover()
            return self._transact(batch, together=False)

    def _transact(self, batch: list[Pending], *, together: bool) -> tuple[list[Any], PendingEffects]:
        if not self._state_is_current:
            raise StoreError("The store cannot read its file.")
        groups: dict[type, list[int]] = {}
        for index, pending in enumerate(batch):
            groups.setdefault(type(pending.command), []).append(index)
        results: list[Any] = [None] * len(batch)
        self._connection.execute("BEGIN IMMEDIATE")
        tx = Transaction(self._connection, self._writer_state, self._clock.micros(), retrying=not together)
        run = _run_together if together else _run_one_by_one
        for command_type, handler in self._handlers.items():
            if indexes := groups.get(command_type):
                answers = run(tx, handler, [batch[index].command for index in indexes])
                for index, answer in zip(indexes, answers, strict=True):
                    results[index] = answer
        assert self._connection.in_transaction, "a handler ended the transaction"
        tx.flush()
        self._connection.execute("COMMIT")
        update_buckets(tx)
        return results, tx.effects

    def _recover(self) -> None:
        """Roll back a failed transaction, and load the writer state from the file again."""
        self._state_is_current = False
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._writer_state.reload()
            self._state_is_current = True
        except Exception as error:
            failures.log("recovery_failed", error)

    # -- on the event loop ----------------------------------------------------------------------------------

    def _deliver(self, batch: list[Pending], results: list[Any], notice: CommitNotice) -> None:
        self._delivered += len(batch)
        for pending, result in zip(batch, results, strict=True):
            self._undelivered_by_tenant[pending.tenant] -= 1
            if not self._undelivered_by_tenant[pending.tenant]:
                del self._undelivered_by_tenant[pending.tenant]
            if pending.future.done():
                continue
            if isinstance(result, DeferredAnswer) and len(result.items) > UNSLICED_ITEMS_MAX:
                task = self._loop.create_task(_build_large_answer(pending.future, result))
                self._answer_tasks.add(task)
                task.add_done_callback(self._answer_tasks.discard)
            else:
                _resolve_future(pending.future, result)
        self._on_commit(notice)


def _weigh(command: Command[Any]) -> int:
    """Return how many commands a command counts for in a batch."""
    if type(command) in COSTLY_COMMANDS:
        return COSTLY_WEIGHT
    return 1 + count_items(command) // ITEMS_PER_COMMAND


def _resolve_future(future: asyncio.Future[Any], result: Any) -> None:
    value = result
    if isinstance(result, DeferredAnswer):
        try:
            value = list(map(result.build_item, result.items))
        except Exception as error:  # The other callers of the batch must still get their results.
            value = _unknown_outcome(error)
    if isinstance(value, IngotError):
        future.set_exception(value)
    else:
        future.set_result(value)


async def _build_large_answer(future: asyncio.Future[Any], answer: DeferredAnswer) -> None:
    value: Any
    try:
        value = await map_in_slices(answer.build_item, answer.items)
    except Exception as error:
        value = _unknown_outcome(error)
    if not future.done():
        _resolve_future(future, value)


def _unknown_outcome(error: Exception) -> OutcomeUnknown:
    failures.log("answer_failed", error)
    return OutcomeUnknown("The change was made, but its result could not be built.")


def _run_together(tx: Transaction, handler: Handler, commands: list[Any]) -> Sequence[Any]:
    return handler(tx, commands)


def _run_one_by_one(tx: Transaction, handler: Handler, commands: list[Any]) -> Sequence[Any]:
    """Run each command under its own savepoint, so that a failing one does not affect the others."""
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
    """Translate the failure of a transaction into an error for its callers."""
    match error:
        case IngotError():
            return error
        case apsw.FullError():
            return StorageFull()
        case apsw.IOError():
            failures.log("commit_failed", error)
            return OutcomeUnknown()
        case _:
            failures.log("transaction_failed", error)
            return StoreError(f"The store failed: {error}")
