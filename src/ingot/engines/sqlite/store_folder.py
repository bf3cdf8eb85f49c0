"""Opening a store: the folder, its lock, the file, the schema, and the writer state."""

from __future__ import annotations

import os
from pathlib import Path

import apsw
import msgspec

from ingot.engines.sqlite.connection import open_writer, translate_error
from ingot.engines.sqlite.folder_lock import FolderLock
from ingot.engines.sqlite.migrate import migrate
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.writer_state import WriterState
from ingot.kernel.clock import MICROS, Clock, MonotonicClock
from ingot.kernel.errors import StoreMisconfigured

FILE_NAME = "ingot.db"
FILE_MODE = 0o600
FOLDER_MODE = 0o700


class StoreFolder(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of an open store."""

    path: Path
    lock: FolderLock
    connection: apsw.Connection
    writer_state: WriterState
    clock: MonotonicClock

    def close(self) -> None:
        """Close the file and release the folder."""
        self.connection.close()
        self.lock.release()


def open_folder(folder: Path, clock: Clock, *, lease_seconds: float, vfs: str | None) -> StoreFolder:
    """Open or create the store in a folder. If that fails, everything is released."""
    try:
        lock = _lock_folder(folder)
    except OSError as error:
        raise _unusable_folder_error(folder, error) from error
    try:
        return _open_file(folder / FILE_NAME, lock, clock, lease_seconds=lease_seconds, vfs=vfs)
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


def _open_file(path: Path, lock: FolderLock, clock: Clock, *, lease_seconds: float, vfs: str | None) -> StoreFolder:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
    connection = open_writer(path, vfs=vfs)
    try:
        migrate(connection, clock)
        _sync_folder(path.parent)
        with connection:
            epoch = connection.execute(SQL.begin_epoch).get
            last_time = connection.execute(SQL.store_clock).get
        store_clock = MonotonicClock(clock, floor=last_time)
        writer_state = WriterState(
            connection, epoch=epoch, sweep_from=store_clock.micros() + round(lease_seconds * MICROS)
        )
    except BaseException:
        connection.close()
        raise
    return StoreFolder(path=path, lock=lock, connection=connection, writer_state=writer_state, clock=store_clock)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
