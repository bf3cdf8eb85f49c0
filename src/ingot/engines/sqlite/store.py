"""The store that rooms run their commands on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Mapping
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from ingot.engines.listeners import ObservableStore, StoreListeners, notify_all
from ingot.engines.sqlite.commands import GROWING, READS, WRITES
from ingot.engines.sqlite.readers import Readers
from ingot.engines.sqlite.store_folder import StoreFolder, open_folder
from ingot.engines.sqlite.writer import CommitNotice, Writer
from ingot.jobs.metrics import Listener, Load
from ingot.jobs.model import AttemptOutcome, JobStatus
from ingot.jobs.ports import Enqueue
from ingot.kernel.clock import MICROS, Clock
from ingot.kernel.commands import Command
from ingot.kernel.logs import report

SWITCH_SECONDS = 0.0002  # How long a busy event loop can keep the interpreter from the writer.

A = TypeVar("A")


class SQLiteStore(ObservableStore):
    """Jobs, tenants, events and blobs in one SQLite file. Created by `open`, used on one event loop."""

    engine: Literal["sqlite"] = "sqlite"
    is_exclusive = True

    def __init__(self, store_folder: StoreFolder, *, vfs: str | None) -> None:
        super().__init__(StoreListeners())
        self._folder = store_folder
        self.connection = store_folder.connection
        self.writer_state = store_folder.writer_state
        self._clock = store_folder.clock
        self._closing: asyncio.Future[None] | None = None
        self._readers = Readers(store_folder.path, store_folder.writer_state, clock=store_folder.clock, vfs=vfs)
        self._writer = Writer(
            store_folder.connection,
            store_folder.writer_state,
            clock=store_folder.clock,
            handlers=WRITES,
            growing=GROWING,
            reserve=store_folder.reserve,
            on_commit=self._notify_commit,
        )

    @classmethod
    async def open(
        cls, folder: Path, *, clock: Clock, lease_seconds: float, vfs: str | None = None, reserve_bytes: int = 0
    ) -> SQLiteStore:
        """Open or create the store in a folder. Up to `reserve_bytes` are reserved for use when the disk is full.

        Raises `StoreLocked` if another process has it open, `StoreTooNew`, `StoreMisconfigured`, `StorageFull`, or
        `StoreError` if the file cannot be used.
        """
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_SECONDS))
        opening = asyncio.ensure_future(
            asyncio.to_thread(
                open_folder, folder, clock, lease_seconds=lease_seconds, vfs=vfs, reserve_bytes=reserve_bytes
            )
        )
        try:
            return cls(await asyncio.shield(opening), vfs=vfs)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_abandoned)
            raise

    async def close(self) -> None:
        """Run the queued commands, then close the file and release the folder, even if the caller is canceled."""
        if self._closing is None:
            self._writer.stop()
            self._closing = asyncio.ensure_future(asyncio.to_thread(self._close))
        await asyncio.shield(self._closing)

    def _close(self) -> None:
        self._writer.join()
        self._readers.close()
        self._folder.close()

    def run(self, command: Command[A]) -> Awaitable[A]:
        """See `Store`. Raises `TypeError` for a command that this engine does not implement."""
        read = READS.get(type(command))
        if read is not None:
            return self._readers.submit(read, command)
        answer = self._writer.submit(command)
        if self._writer.coalesces and isinstance(command, Enqueue) and not answer.done():
            self._announce_upcoming(command)
        return answer

    def _announce_upcoming(self, command: Enqueue) -> None:
        """Wake waiting claims now, so that they run in the same commit, after these jobs are enqueued."""
        upcoming: dict[tuple[str, str], int] = {}
        for job in command.jobs:
            if not (job.run_at or job.delay or job.after or job.uploads):
                upcoming[job.tenant, job.type] = upcoming.get((job.tenant, job.type), 0) + 1
        self._notify_ready(upcoming)

    # -- notifications --------------------------------------------------------------------------------------

    def _notify_commit(self, notice: CommitNotice) -> None:
        self._notify_ready(notice.ready)
        for tenant in notice.event_tenants:
            notify_all(self.listeners.event, tenant)
        for tenant in notice.removed_tenants:
            notify_all(self.listeners.tenant_removed, tenant)
        if notice.records_changed:
            notify_all(self.listeners.record_changed)
        if notice.next_maintenance_at is not None:
            notify_all(self.listeners.maintenance_rescheduled)
        if notice.lost_leases:
            notify_all(self.listeners.leases_lost, notice.lost_leases)
        notify_all([partial(_notify_metrics, listener) for listener in self.listeners.metrics], notice)

    def _notify_ready(self, ready: Mapping[tuple[str, str], int]) -> None:
        for (tenant, type), jobs in ready.items():
            for callback in self.listeners.ready:
                try:
                    callback(tenant, type, jobs)
                except Exception as error:  # Like `notify_all`, without one more call for each enqueue.
                    report("listener_failed", error)

    async def measure_load(self) -> Load:
        """See `JobStore`."""
        return self._writer.load()

    def seconds_to_maintenance(self) -> float | None:
        """See `JobStore`."""
        next_at = self.writer_state.next_maintenance_at()
        return None if next_at is None else max(0.0, (next_at - self._clock.micros()) / MICROS)

    def tick(self) -> None:
        """See `JobStore`."""
        self.writer_state.sweep_guard.tick(self._clock.micros())

    def coalesce_commands(self) -> None:
        """See `JobStore`."""
        self._writer.coalesces = True


def _close_abandoned(opening: asyncio.Future[StoreFolder]) -> None:
    """Close a store whose caller was canceled while it was opened."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _notify_metrics(listener: Listener, notice: CommitNotice) -> None:
    """Report a commit to a listener, with attempts grouped by how they ended."""
    if notice.commands:
        listener.committed("sqlite", "write", notice.commands)
    durations_by_end: dict[tuple[str, AttemptOutcome, JobStatus], list[int]] = {}
    for type, outcome, status, micros in notice.attempt_ends:
        durations_by_end.setdefault((type, outcome, status), []).append(micros)
    for end, durations in durations_by_end.items():
        listener.ended(*end, durations)
    for type, jobs in notice.canceled.items():
        listener.canceled(type, jobs)
