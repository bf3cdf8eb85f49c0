"""Files that SQLite stores open without migrating: copies of one that was migrated once in this process."""

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
    """Put an empty store with today's schema into a folder that has none."""
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
        connection.close()  # The write-ahead log goes into the file with that.
        return path.read_bytes()
