"""How much room objects leave on their disk: deleting writes before it frees anything, and has to be able to."""

from __future__ import annotations

from typing import Final

from ingot.kernel.errors import StorageFull
from ingot.objects.syscalls import Syscalls

SPARE_BYTES: Final = 256 * 1024 * 1024
SPARE_DIVISOR: Final = 20  # Unless it was told how much, it is never more than this part of the file system.


class FreeSpace:
    """The room of the file system that a folder is on. `spare_bytes` of it stay free; with 0 nobody looks."""

    def __init__(self, files: Syscalls, folder: str, spare_bytes: int | None) -> None:
        self._syscalls = files
        self._folder = folder
        self._spare_bytes = spare_bytes

    def check(self, size: int) -> None:
        """Raises `StorageFull` when less than the spare would be free behind so many bytes more."""
        if self._spare_bytes == 0:
            return
        free, total = self._syscalls.disk_space(self._folder)
        if total == 0:
            return  # Some file systems never tell.
        spare = min(SPARE_BYTES, total // SPARE_DIVISOR) if self._spare_bytes is None else self._spare_bytes
        if free - size < spare:
            raise StorageFull("There is no room left for blobs: the rest of the disk is kept free for deleting.")
