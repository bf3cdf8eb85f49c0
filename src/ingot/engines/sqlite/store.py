"""The store: what the rooms see of this engine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Mapping
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from ingot.engines.listeners import ObservableStore, StoreListeners, notify_all
from ingot.engines.sqlite.commands import READS, WRITES
from ingot.engines.sqlite.readers import Readers
from ingot.engines.sqlite.store_folder import StoreFolder, open_folder
from ingot.engines.sqlite.writer import CommitNotice, Writer
from ingot.jobs.metrics import Listener, Load
from ingot.jobs.model import AttemptOutcome, JobStatus
from ingot.jobs.ports import Enqueue
from ingot.kernel.clock import MICROS, Clock
from ingot.kernel.commands import Command
from ingot.kernel.logs import report

SWITCH_SECONDS = 0.0002  # A busy event loop must not keep the interpreter from the writer for longer.

A = TypeVar("A")


class SQLiteStore(ObservableStore):
    """Jobs, tenants, events and blobs in one SQLite file. Made by `open`; used on one event loop."""

    engine: Literal["sqlite"] = "sqlite"
    is_exclusive = True

    def __init__(self, opened: StoreFolder, *, vfs: str | None) -> None:
        super().__init__(StoreListeners())
        self._folder = opened
        self.connection = opened.connection
        self.writer_state = opened.writer_state
        self._clock = opened.clock
        self._closing: asyncio.Future[None] | None = None
        self._readers = Readers(opened.path, opened.writer_state, clock=opened.clock, vfs=vfs)
        self._writer = Writer(
            opened.connection, opened.writer_state, clock=opened.clock, handlers=WRITES, on_commit=self._notify_commit
        )

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
            opening.add_done_callback(_close_abandoned)
            raise

    async def close(self) -> None:
        """Finish what is queued, then let the file and the folder go, even when the caller does not wait for it."""
        if self._closing is None:
            self._writer.stop()
            self._closing = asyncio.ensure_future(asyncio.to_thread(self._close))
        await asyncio.shield(self._closing)

    def _close(self) -> None:
        self._writer.join()
        self._readers.close()
        self._folder.close()

    def run(self, command: Command[A]) -> Awaitable[A]:
        """See `Store`. Raises `TypeError` for a command that is in neither table."""
        read = READS.get(type(command))
        if read is not None:
            return self._readers.submit(read, command)
        answer = self._writer.submit(command)
        if self._writer.coalesces and isinstance(command, Enqueue) and not answer.done():
            self._announce_upcoming(command)
        return answer

    def _announce_upcoming(self, command: Enqueue) -> None:
        """Have claims that wait come at once: what gathers in this turn is committed together, the jobs before them."""
        soon: dict[tuple[str, str], int] = {}
        for one in command.jobs:
            if not (one.run_at or one.delay or one.after or one.uploads):
                soon[one.tenant, one.type] = soon.get((one.tenant, one.type), 0) + 1
        self._notify_ready(soon)

    # -- hints ----------------------------------------------------------------------------------------------

    def _notify_commit(self, told: CommitNotice) -> None:
        self._notify_ready(told.ready)
        for tenant in told.event_tenants:
            notify_all(self.listeners.event, tenant)
        for tenant in told.removed_tenants:
            notify_all(self.listeners.tenant_removed, tenant)
        if told.records_changed:
            notify_all(self.listeners.record_changed)
        if told.next_maintenance_at is not None:
            notify_all(self.listeners.maintenance_rescheduled)
        notify_all([partial(_notify_metrics, listener) for listener in self.listeners.metrics], told)

    def _notify_ready(self, ready: Mapping[tuple[str, str], int]) -> None:
        for (tenant, type), jobs in ready.items():
            for callback in self.listeners.ready:
                try:
                    callback(tenant, type, jobs)
                except Exception as error:  # As in `tell`, which would be called with every order.
                    report("listener_failed", error)

    async def measure_load(self) -> Load:
        """See `JobStore`."""
        return self._writer.load()

    def seconds_to_maintenance(self) -> float | None:
        """See `JobStore`."""
        agenda = self.writer_state.next_maintenance_at()
        return None if agenda is None else max(0.0, (agenda - self._clock.micros()) / MICROS)

    def coalesce_commands(self) -> None:
        """See `JobStore`."""
        self._writer.coalesces = True


def _close_abandoned(opening: asyncio.Future[StoreFolder]) -> None:
    """Close a store whose opener went away."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _notify_metrics(listener: Listener, told: CommitNotice) -> None:
    """Tell what a commit did, attempts that ended alike together."""
    if told.commands:
        listener.committed("sqlite", "write", told.commands)
    alike: dict[tuple[str, AttemptOutcome, JobStatus], list[int]] = {}
    for type, outcome, status, micros in told.attempt_ends:
        alike.setdefault((type, outcome, status), []).append(micros)
    for end, durations in alike.items():
        listener.ended(*end, durations)
    for type, jobs in told.canceled.items():
        listener.canceled(type, jobs)
