"""The store: what the rooms see of this engine."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import apsw

from ingot.engines.sqlite import claim, enqueue, identity, manage, settle, tend
from ingot.engines.sqlite.connection import explain, open_writer
from ingot.engines.sqlite.lock import FolderLock
from ingot.engines.sqlite.memory import Memory
from ingot.engines.sqlite.migrate import migrate
from ingot.engines.sqlite.reads import Reads
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction
from ingot.engines.sqlite.writer import DISK_ERRORS, Handler, Told, Writer
from ingot.identity.model import Tenant
from ingot.identity.ports import ChangeTenant, CreateTenant
from ingot.jobs.model import Claim, Definition, Enqueued, Heartbeat, Job, Settled, Tended
from ingot.jobs.ports import (
    CancelJob,
    ChangeJob,
    ClaimJobs,
    Enqueue,
    PutDefinition,
    RenewLeases,
    RetryJob,
    SettleJobs,
    Tend,
)
from ingot.kernel.clock import MICROS, Clock, SteadyClock
from ingot.kernel.errors import IngotError

FILE_NAME = "ingot.db"
SWITCH_SECONDS = 0.0002  # A busy event loop must not keep the interpreter from the writer for longer.

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


# Commands that wait together run in this order, so that a claim sees what came with it.
HANDLERS: dict[type, Handler] = {
    CreateTenant: each(identity.create_tenant),
    ChangeTenant: each(identity.change_tenant),
    PutDefinition: each(identity.put_definition),
    RenewLeases: settle.renew,
    SettleJobs: settle.settle,
    CancelJob: each(manage.cancel),
    RetryJob: each(manage.retry),
    ChangeJob: each(manage.change),
    Enqueue: enqueue.enqueue,
    Tend: tend.tend,
    ClaimJobs: claim.claim,
}


class SQLiteStore(Reads):
    """Jobs, tenants and events in one SQLite file. Made by `open`; used on one event loop."""

    def __init__(
        self, folder: Path, lock: FolderLock, connection: apsw.Connection, memory: Memory, clock: Clock, vfs: str | None
    ) -> None:
        super().__init__(folder / FILE_NAME, vfs=vfs)
        self._lock = lock
        self._connection = connection
        self._memory = memory
        self._clock = clock
        self._tell_ready: list[Callable[[str, str, int], None]] = []
        self._tell_agenda: list[Callable[[], None]] = []
        self._writer = Writer(connection, memory, clock=clock, handlers=HANDLERS, tell=self._tell)

    @classmethod
    async def open(cls, folder: Path, *, clock: Clock, lease_seconds: float, vfs: str | None = None) -> SQLiteStore:
        """Open or make the store in a folder.

        Raises `StoreLocked` when another process has it, `StoreTooNew`, `StoreMisconfigured`, `StorageFull`, or
        `StoreError` when the file cannot be used.
        """
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_SECONDS))
        lock = await asyncio.to_thread(_lock, folder)
        try:
            connection, memory, steady = await asyncio.to_thread(_prepare, folder, clock, lease_seconds, vfs)
        except BaseException as error:
            lock.release()
            if isinstance(error, DISK_ERRORS):
                raise explain(error, doing="opened") from error
            raise
        return cls(folder, lock, connection, memory, steady, vfs)

    async def close(self) -> None:
        """Finish what is queued, then let the file and the folder go."""
        await self._writer.stop()
        await self.close_readers()
        await asyncio.to_thread(self._connection.close)
        self._lock.release()

    def _tell(self, told: Told) -> None:
        for (tenant, type), jobs in told.ready.items():
            for tell_ready in self._tell_ready:
                tell_ready(tenant, type, jobs)
        if told.agenda is not None:
            for tell_agenda in self._tell_agenda:
                tell_agenda()

    # -- hints ----------------------------------------------------------------------------------------------

    def on_ready(self, tell: Callable[[str, str, int], None]) -> None:
        """See `JobStore`."""
        self._tell_ready.append(tell)

    def on_agenda(self, tell: Callable[[], None]) -> None:
        """See `JobStore`."""
        self._tell_agenda.append(tell)

    def seconds_to_agenda(self) -> float | None:
        """See `JobStore`."""
        agenda = self._memory.agenda()
        return None if agenda is None else max(0.0, (agenda - self._clock.micros()) / MICROS)

    # -- commands -------------------------------------------------------------------------------------------

    def create_tenant(self, command: CreateTenant) -> Awaitable[Tenant]:
        """See `TenantStore`."""
        return self._writer.submit(command)

    def change_tenant(self, command: ChangeTenant) -> Awaitable[Tenant]:
        """See `TenantStore`."""
        return self._writer.submit(command)

    def put_definition(self, command: PutDefinition) -> Awaitable[Definition]:
        """See `JobStore`."""
        return self._writer.submit(command)

    def enqueue(self, command: Enqueue) -> Awaitable[list[Enqueued]]:
        """See `JobStore`."""
        return self._writer.submit(command)

    def claim(self, command: ClaimJobs) -> Awaitable[list[Claim]]:
        """See `JobStore`."""
        return self._writer.submit(command)

    def renew(self, command: RenewLeases) -> Awaitable[list[Heartbeat | IngotError]]:
        """See `JobStore`."""
        return self._writer.submit(command)

    def settle(self, command: SettleJobs) -> Awaitable[list[Settled | IngotError]]:
        """See `JobStore`."""
        return self._writer.submit(command)

    def cancel(self, command: CancelJob) -> Awaitable[Job]:
        """See `JobStore`."""
        return self._writer.submit(command)

    def retry(self, command: RetryJob) -> Awaitable[Job]:
        """See `JobStore`."""
        return self._writer.submit(command)

    def change(self, command: ChangeJob) -> Awaitable[Job]:
        """See `JobStore`."""
        return self._writer.submit(command)

    def tend(self, command: Tend) -> Awaitable[Tended]:
        """See `JobStore`."""
        return self._writer.submit(command)


def _lock(folder: Path) -> FolderLock:
    if not folder.exists():
        folder.mkdir(mode=0o700, parents=True)
        _sync_folder(folder.parent)
    return FolderLock(folder)


def _prepare(
    folder: Path, clock: Clock, lease_seconds: float, vfs: str | None
) -> tuple[apsw.Connection, Memory, SteadyClock]:
    connection = open_writer(folder / FILE_NAME, vfs=vfs)
    try:
        migrate(connection, clock)
        _sync_folder(folder)
        with connection:
            epoch = connection.execute(SQL.begin_epoch).get
            last_time = connection.execute(SQL.store_clock).get
        steady = SteadyClock(clock, floor=last_time)
        sweep_from = steady.micros() + round(lease_seconds * MICROS)
        memory = Memory(connection, fence=epoch * claim.FENCES_PER_EPOCH, sweep_from=sweep_from)
    except BaseException:
        connection.close()
        raise
    return connection, memory, steady


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
