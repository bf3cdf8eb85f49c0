"""Connections: opened one way only, with the pragmas our promises rest on set and read back."""

from __future__ import annotations

from pathlib import Path

import apsw

from ingot.kernel.errors import StorageFull, StoreError, StoreMisconfigured

WRITER_PRAGMAS: dict[str, object] = {
    "journal_mode": "wal",
    "synchronous": 2,  # FULL: the log is synced before a commit returns.
    "busy_timeout": 5000,
    "wal_autocheckpoint": 4000,
    "cache_size": -65536,  # KiB
    "temp_store": 2,  # MEMORY
    "journal_size_limit": 64 * 2**20,  # A log that one huge batch blew up is cut back.
}
# After these a transaction as a whole cannot go on; SQLite may have rolled it back already.
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
    """The one connection that writes. Raises `StoreMisconfigured` when a pragma does not hold."""
    connection = apsw.Connection(str(path), vfs=vfs, statementcachesize=CACHED_STATEMENTS)
    _set_pragmas(connection, WRITER_PRAGMAS)
    return connection


def open_reader(path: Path, *, vfs: str | None = None) -> apsw.Connection:
    """A connection that can only read."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
    _set_pragmas(connection, READER_PRAGMAS)
    return connection


def translate_error(error: apsw.Error, *, action: str) -> StoreError:
    """What an error of the driver means where it has changed nothing: while a store is opened or read."""
    match error:
        case apsw.FullError():
            return StorageFull()
        case apsw.NotADBError() | apsw.SQLError():
            return StoreMisconfigured(f"The file is not one of Ingot's: {error}.", hint="Name another data folder.")
        case _:
            return StoreError(f"The store could not be {action}: {error}")


def pragmas_of(connection: apsw.Connection, names: dict[str, object]) -> dict[str, object]:
    """The values that hold now."""
    return {name: connection.pragma(name) for name in names}


def _set_pragmas(connection: apsw.Connection, pragmas: dict[str, object]) -> None:
    for name, value in pragmas.items():
        connection.pragma(name, value)
    held = pragmas_of(connection, pragmas)
    if held != pragmas:
        wrong = {name: held[name] for name in pragmas if held[name] != pragmas[name]}
        connection.close()
        raise StoreMisconfigured(f"SQLite did not accept its settings: {wrong}")
