"""Opening a store: the folder, its lock, the file, the schema, and the writer state."""

from __future__ import annotations

import os
from pathlib import Path

import apsw
import msgspec
import structlog

from ingot.engines.sqlite.connection import open_writer, translate_error
from ingot.engines.sqlite.disk_reserve import DiskReserve
from ingot.engines.sqlite.folder_lock import FolderLock
from ingot.engines.sqlite.migrate import migrate
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.writer_state import WriterState
from ingot.engines.sweep_guard import SweepGuard
from ingot.kernel.clock import MICROS, Clock, MonotonicClock, to_datetime
from ingot.kernel.errors import StoreMisconfigured

FILE_NAME = "ingot.db"
# How far the time of a store may be ahead of the clock of the machine, so that it does not go back after a small
# correction of that clock.
AHEAD_MICROS_MAX = 10 * MICROS
FUTURE_TIMES_HINT = (
    "The clock of this machine is wrong now, or it was wrong when these times were stored. If it is wrong now, correct "
    "it and restart the server. If it was wrong then, jobs that were given a delay at that time start late, unless "
    "their run_at is changed."
)
FILE_MODE = 0o600
FOLDER_MODE = 0o700

log = structlog.get_logger(__name__)


class StoreFolder(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of an open store."""

    path: Path
    lock: FolderLock
    connection: apsw.Connection
    writer_state: WriterState
    clock: MonotonicClock
    reserve: DiskReserve

    def close(self) -> None:
        """Close the file and release the folder."""
        self.connection.close()
        self.lock.release()


def open_folder(
    folder: Path, clock: Clock, *, lease_seconds: float, vfs: str | None, reserve_bytes: int
) -> StoreFolder:
    """Open or create the store in a folder. If that fails, everything is released."""
    try:
        lock = _lock_folder(folder)
    except OSError as error:
        raise _unusable_folder_error(folder, error) from error
    reserve = DiskReserve(folder, reserve_bytes)
    try:
        reserve.prepare_opening()
        while True:
            try:
                opened = _open_file(folder / FILE_NAME, lock, clock, reserve, lease_seconds=lease_seconds, vfs=vfs)
            except apsw.FullError:
                if not reserve.release():
                    raise
            else:
                reserve.fill()
                return opened
    except BaseException as error:
        lock.release()
        if isinstance(error, apsw.Error):
            raise translate_error(error, action="opened") from error
        if isinstance(error, OSError):
            raise _unusable_folder_error(folder, error) from error
        raise


def _unusable_folder_error(folder: Path, error: OSError) -> StoreMisconfigured:
    return StoreMisconfigured(
        f"The data folder {folder.absolute()} cannot be used: {error.strerror or error}.",
        hint="Set INGOT_DATA to a folder that this user can create and write to.",
    )


def _lock_folder(folder: Path) -> FolderLock:
    if not folder.exists():
        folder.mkdir(mode=FOLDER_MODE, parents=True)
        _sync_folder(folder.parent)
    return FolderLock(folder)


def _open_file(
    path: Path, lock: FolderLock, clock: Clock, reserve: DiskReserve, *, lease_seconds: float, vfs: str | None
) -> StoreFolder:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
    lease = round(lease_seconds * MICROS)
    connection = open_writer(path, vfs=vfs)
    try:
        migrate(connection, clock)
        _sync_folder(path.parent)
        with connection:
            epoch = connection.execute(SQL.begin_epoch).get
            store_clock = _start_clock(connection, clock, lease=lease)
        sweep_guard = SweepGuard(lease)
        sweep_guard.postpone(store_clock.micros())
        writer_state = WriterState(connection, epoch=epoch, sweep_guard=sweep_guard)
    except BaseException:
        connection.close()
        raise
    return StoreFolder(
        path=path, lock=lock, connection=connection, writer_state=writer_state, clock=store_clock, reserve=reserve
    )


def _start_clock(connection: apsw.Connection, clock: Clock, *, lease: int) -> MonotonicClock:
    """Return the clock of the store. It is at most `AHEAD_MICROS_MAX` ahead of the other clock.

    If later times are stored, one of both clocks was wrong. Leases and delays that began then are moved to now.
    """
    newest_time: int = connection.execute(SQL.store_clock).get
    store_clock = MonotonicClock(clock, floor=min(newest_time, clock.micros() + AHEAD_MICROS_MAX))
    now = store_clock.micros()
    if newest_time > now:
        connection.execute(SQL.shorten_leases, (now, now + lease))
        for statement in (SQL.correct_running_attempts, SQL.restart_delays, SQL.correct_workers_seen):
            connection.execute(statement, (now,))
        log.warning(
            "stored_times_in_the_future",
            newest=to_datetime(newest_time).isoformat(),
            now=to_datetime(now).isoformat(),
            hint=FUTURE_TIMES_HINT,
        )
    return store_clock


def read_newest_time(folder: Path) -> int | None:
    """Return the latest time in the store of a folder, or `None` if there is no store. Nothing is changed.

    Raises `StoreError` if the file cannot be read.
    """
    path = folder / FILE_NAME
    if not path.exists():
        return None
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            newest_time: int = connection.execute(SQL.store_clock).get
        finally:
            connection.close()
    except apsw.Error as error:
        raise translate_error(error, action="read") from error
    return newest_time


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
