"""A disk that becomes full, or fails, after a given number of steps."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ingot.blobs.model import PART_BYTES
from ingot.objects.syscalls import Syscalls

SYNCED = os.urandom(PART_BYTES + 5)
UNSYNCED = os.urandom(70_000)


class BadDisk(Syscalls):
    """Performs `steps_left` more steps and then fails with `error`. The last write is written by half."""

    def __init__(self) -> None:
        super().__init__()
        self.error = errno.ENOSPC
        self.steps_left: int | None = None
        self.failures = 0

    def _step(self) -> None:
        if self.steps_left is not None:
            if self.steps_left == 0:
                self.failures += 1
                raise OSError(self.error, os.strerror(self.error))
            self.steps_left -= 1

    def make_folder(self, path: str) -> None:
        self._step()
        super().make_folder(path)

    def sync_folder(self, path: str) -> None:
        self._step()
        super().sync_folder(path)

    def rename(self, path: str, to: str) -> None:
        self._step()
        super().rename(path, to)

    def create(self, path: str) -> int:
        self._step()
        return super().create(path)

    def allocate(self, handle: int, size: int) -> None:
        self._step()
        super().allocate(handle, size)

    def write(self, handle: int, data: memoryview, offset: int) -> int:
        self._step()
        return super().write(handle, data[: (len(data) + 1) // 2] if self.steps_left == 0 else data, offset)

    def sync(self, handle: int) -> None:
        self._step()
        super().sync(handle)


def files_below(folder: Path) -> set[str]:
    """Return the paths of all files below a folder, relative to it."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
