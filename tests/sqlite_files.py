"""Migrated SQLite files: copies of one that this process has migrated once."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from ingot.engines.sqlite.connection import open_writer
from ingot.engines.sqlite.migrate import migrate
from ingot.engines.sqlite.store_folder import FILE_MODE, FILE_NAME, FOLDER_MODE
from ingot.kernel.clock import ManualClock


def copy_migrated_file(folder: Path) -> None:
    """Copy an empty store with the current schema into a folder that has no store."""
    path = folder / FILE_NAME
    if path.exists():
        return
    if not folder.exists():
        folder.mkdir(mode=FOLDER_MODE, parents=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "wb") as file:
        file.write(_migrated())


@cache
def _migrated() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder, FILE_NAME)
        connection = open_writer(path, vfs=None)
        migrate(connection, ManualClock())
        connection.close()  # This writes the write-ahead log into the file.
        return path.read_bytes()
