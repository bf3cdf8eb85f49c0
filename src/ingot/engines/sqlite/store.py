"""The store: what the rooms see of this engine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from ingot.engines.sqlite.commands import READS, WRITES
from ingot.engines.sqlite.opening import Opened, open_folder
from ingot.engines.sqlite.readers import Readers
from ingot.engines.sqlite.writer import Told, Writer
from ingot.jobs.figures import Listener, Load
from ingot.jobs.model import AttemptOutcome, JobStatus
from ingot.jobs.ports import Enqueue
from ingot.kernel.clock import MICROS, Clock
from ingot.kernel.commands import Command
from ingot.kernel.logs import report

SWITCH_SECONDS = 0.0002  # A busy event loop must not keep the interpreter from the writer for longer.

A = TypeVar("A")


class SQLiteStore:
    """Jobs, tenants, events and blobs in one SQLite file. Made by `open`; used on one event loop."""

    engine: Literal["sqlite"] = "sqlite"
    alone = True

    def __init__(self, opened: Opened, *, vfs: str | None) -> None:
        self._opened = opened
        self.connection = opened.connection
        self.memory = opened.memory
        self._clock = opened.clock
        self._closing: asyncio.Future[None] | None = None
        self._tell_ready: list[Callable[[str, str, int], object]] = []
        self._tell_agenda: list[Callable[[], None]] = []
        self._listeners: list[Listener] = []
        self._tell_event: list[Callable[[str], None]] = []
        self._tell_removed: list[Callable[[str], None]] = []
        self._tell_record: list[Callable[[], None]] = []
        self._readers = Readers(opened.path, opened.memory, clock=opened.clock, vfs=vfs)
        self._writer = Writer(opened.connection, opened.memory, clock=opened.clock, handlers=WRITES, tell=self._tell)

    @classmethod
    async def open(cls, folder: Path, *, clock: Clock, lease_seconds: float, vfs: str | None = None) -> SQLiteStore:
        """Open or make the store in a folder.

        Raises `StoreLocked` when another process has it, `StoreTooNew`, `StoreMisconfigured`, `StorageFull`, or
        `StoreError` when the file cannot be used.
        """
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_SECONDS))
        opening = asyncio.ensure_future(
            asyncio.to_thread(open_folder, folder, clock, lease_seconds=lease_seconds, vfs=vfs)
        )
        try:
            return cls(await asyncio.shield(opening), vfs=vfs)
        except asyncio.CancelledError:
            opening.add_done_callback(_let_go)
            raise

    async def close(self) -> None:
        """Finish what is queued, then let the file and the folder go, even when the caller does not wait for it."""
        if self._closing is None:
            self._writer.end()
            self._closing = asyncio.ensure_future(asyncio.to_thread(self._close))
        await asyncio.shield(self._closing)

    def _close(self) -> None:
        self._writer.join()
        self._readers.close()
        self._opened.close()

    def run(self, command: Command[A]) -> Awaitable[A]:
        """See `Store`. Raises `TypeError` for a command that is in neither table."""
        read = READS.get(type(command))
        if read is not None:
            return self._readers.submit(read, command)
        answer = self._writer.submit(command)
        if self._writer.gathers and isinstance(command, Enqueue) and not answer.done():
            self._foretell(command)
        return answer

    def _foretell(self, command: Enqueue) -> None:
        """Have claims that wait come at once: what gathers in this turn is committed together, the jobs before them."""
        soon: dict[tuple[str, str], int] = {}
        for one in command.orders:
            if not (one.run_at or one.delay or one.after or one.uploads):
                soon[one.tenant, one.type] = soon.get((one.tenant, one.type), 0) + 1
        self._say_ready(soon)

    # -- hints ----------------------------------------------------------------------------------------------

    def _tell(self, told: Told) -> None:
        self._say_ready(told.ready)
        for tenant in told.tenants:
            for tell_event in self._tell_event:
                _tell_one(partial(tell_event, tenant))
        for tenant in told.removed:
            for tell_removed in self._tell_removed:
                _tell_one(partial(tell_removed, tenant))
        if told.records:
            for tell_record in self._tell_record:
                _tell_one(tell_record)
        if told.agenda is not None:
            for tell_agenda in self._tell_agenda:
                _tell_one(tell_agenda)
        for listener in self._listeners:
            _tell_one(partial(_tell_listener, listener, told))

    def _say_ready(self, ready: Mapping[tuple[str, str], int]) -> None:
        for (tenant, type), jobs in ready.items():
            for tell_ready in self._tell_ready:
                try:
                    tell_ready(tenant, type, jobs)
                except Exception as error:  # As in `_tell_one`, which would be called with every order.
                    report("listener_failed", error)

    def on_ready(self, tell: Callable[[str, str, int], object]) -> None:
        """See `JobStore`."""
        self._tell_ready.append(tell)

    def on_coming(self, wake: Callable[[str, str, int], int]) -> None:
        """See `JobStore`. A call costs no round trip here, so nobody needs to be woken early."""

    def on_agenda(self, tell: Callable[[], None]) -> None:
        """See `JobStore`."""
        self._tell_agenda.append(tell)

    def listen(self, listener: Listener) -> None:
        """See `JobStore`."""
        self._listeners.append(listener)

    async def measure(self) -> Load:
        """See `JobStore`."""
        return self._writer.load()

    def on_event(self, tell: Callable[[str], None]) -> None:
        """See `EventLog`."""
        self._tell_event.append(tell)

    def on_removed(self, tell: Callable[[str], None]) -> None:
        """See `TenantStore`."""
        self._tell_removed.append(tell)

    def on_record(self, tell: Callable[[], None]) -> None:
        """See `RecordStore`."""
        self._tell_record.append(tell)

    def seconds_to_agenda(self) -> float | None:
        """See `JobStore`."""
        agenda = self.memory.agenda()
        return None if agenda is None else max(0.0, (agenda - self._clock.micros()) / MICROS)

    def gather(self) -> None:
        """See `JobStore`."""
        self._writer.gathers = True


def _let_go(opening: asyncio.Future[Opened]) -> None:
    """Close a store whose opener went away."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _tell_listener(listener: Listener, told: Told) -> None:
    """Tell what a commit did, attempts that ended alike together."""
    if told.commands:
        listener.committed("sqlite", "write", told.commands)
    alike: dict[tuple[str, AttemptOutcome, JobStatus], list[int]] = {}
    for type, outcome, status, micros in told.ended:
        alike.setdefault((type, outcome, status), []).append(micros)
    for end, durations in alike.items():
        listener.ended(*end, durations)
    for type, jobs in told.canceled.items():
        listener.canceled(type, jobs)


def _tell_one(tell: Callable[[], None]) -> None:
    try:
        tell()
    except Exception as error:  # A listener that fails must not keep the news from the others.
        report("listener_failed", error)
