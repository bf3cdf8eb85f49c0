"""One server per SQLite file: an `flock` that the system gives back when the process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ingot.kernel.errors import StoreLocked

LOCK_NAME = "ingot.lock"


class FolderLock:
    """Holds `ingot.lock` in a data folder."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._file, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(self._file)
            raise StoreLocked(
                f"Another Ingot process (pid {holder}) holds the data folder {folder.absolute()}."
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let the folder go. Doing it twice is fine."""
        file, self._file = self._file, -1
        if file >= 0:
            fcntl.flock(file, fcntl.LOCK_UN)  # A forked child may still have the file open.
            os.close(file)
