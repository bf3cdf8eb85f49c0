"""Connections to the file. Durability depends on their pragmas, which are set and then read back."""

from __future__ import annotations

from pathlib import Path

import apsw

from ingot.kernel.errors import StorageFull, StoreError, StoreMisconfigured

LOG_PAGES = 4000  # Size of the write-ahead log at which it is checkpointed.
WRITER_PRAGMAS: dict[str, object] = {
    "journal_mode": "wal",
    "synchronous": 2,  # FULL: a commit returns after the write-ahead log was synced.
    "busy_timeout": 5000,
    "wal_autocheckpoint": LOG_PAGES,
    "cache_size": -65536,  # KiB
    "temp_store": 2,  # MEMORY
    "journal_size_limit": 64 * 2**20,  # Truncates the log after a very large batch.
}
# After one of these the whole transaction has failed, and SQLite may have rolled it back already.
DISK_ERRORS = (
    apsw.BusyError,
    apsw.CantOpenError,
    apsw.CorruptError,
    apsw.FullError,
    apsw.IOError,
    apsw.NoMemError,
    apsw.NotADBError,
    apsw.ReadOnlyError,
)
READER_PRAGMAS: dict[str, object] = {"busy_timeout": 5000, "cache_size": -16384, "temp_store": 2, "query_only": 1}
CACHED_STATEMENTS = 256


def open_writer(path: Path, *, vfs: str | None = None) -> apsw.Connection:
    """Open the only connection that writes. Raises `StoreMisconfigured` if a pragma does not take effect."""
    connection = apsw.Connection(str(path), vfs=vfs, statementcachesize=CACHED_STATEMENTS)
    _set_pragmas(connection, WRITER_PRAGMAS)
    return connection


def open_reader(path: Path, *, vfs: str | None = None) -> apsw.Connection:
    """Open a connection that can only read."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
    _set_pragmas(connection, READER_PRAGMAS)
    return connection


def translate_error(error: apsw.Error, *, action: str) -> StoreError:
    """Translate a driver error from opening or reading a store, where nothing was changed.

    `action` completes the message "The store could not be …".
    """
    match error:
        case apsw.FullError():
            return StorageFull()
        case apsw.NotADBError() | apsw.SQLError():
            return StoreMisconfigured(
                f"The file is not an Ingot database: {error}.", hint="Set INGOT_DATA to a different folder."
            )
        case _:
            return StoreError(f"The store could not be {action}: {error}")


def pragmas_of(connection: apsw.Connection, names: dict[str, object]) -> dict[str, object]:
    """Return the current values of these pragmas."""
    return {name: connection.pragma(name) for name in names}


def _set_pragmas(connection: apsw.Connection, pragmas: dict[str, object]) -> None:
    for name, value in pragmas.items():
        connection.pragma(name, value)
    actual = pragmas_of(connection, pragmas)
    if actual != pragmas:
        rejected = {name: actual[name] for name in pragmas if actual[name] != pragmas[name]}
        connection.close()
        raise StoreMisconfigured(f"SQLite did not accept these pragmas, which are now: {rejected}")
