"""The lock that allows only one process to open a data folder."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ingot.kernel.errors import StoreLocked
from ingot.kernel.file_locks import close_locked_file, open_locked_file

LOCK_NAME = "ingot.lock"


class FolderLock:
    """A lock on `ingot.lock` in a data folder."""

    def __init__(self, folder: Path) -> None:
        try:
            self._descriptor = open_locked_file(folder / LOCK_NAME)
        except BlockingIOError:
            holder = (folder / LOCK_NAME).read_bytes()[:32].decode("ascii", "replace").strip() or "unknown"
            raise StoreLocked(
                f"Another Ingot process (pid {holder}) holds the data folder {folder.absolute()}."
            ) from None
        pid = f"{os.getpid()}\n".encode()
        with suppress(OSError):  # The disk may be full. The content is only shown to people.
            os.pwrite(self._descriptor, pid, 0)
            os.ftruncate(self._descriptor, len(pid))

    def release(self) -> None:
        """Release the folder. Releasing it again does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            close_locked_file(descriptor)
