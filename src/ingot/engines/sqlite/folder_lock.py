"""One server per SQLite file."""

from __future__ import annotations

import os
from pathlib import Path

from ingot.kernel.errors import StoreLocked
from ingot.kernel.file_locks import close_locked_file, open_locked_file

LOCK_NAME = "ingot.lock"


class FolderLock:
    """Holds `ingot.lock` in a data folder."""

    def __init__(self, folder: Path) -> None:
        try:
            self._file = open_locked_file(folder / LOCK_NAME)
        except BlockingIOError:
            holder = (folder / LOCK_NAME).read_bytes()[:32].decode("ascii", "replace").strip() or "unknown"
            raise StoreLocked(
                f"Another Ingot process (pid {holder}) holds the data folder {folder.absolute()}."
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let the folder go. Doing it twice is fine."""
        file, self._file = self._file, -1
        if file >= 0:
            close_locked_file(file)
