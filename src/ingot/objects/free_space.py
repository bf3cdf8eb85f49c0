"""Spare space on the disk of the blob folder. A delete writes to the database first, so it needs free space too."""

from __future__ import annotations

from typing import Final

from ingot.kernel.errors import StorageFull
from ingot.objects.syscalls import Syscalls

SPARE_BYTES: Final = 256 * 1024 * 1024
SPARE_DIVISOR: Final = 20  # The default spare is at most a twentieth of the file system.


class FreeSpace:
    """The free space of the file system of a folder.

    `spare_bytes` of it stay free: 256 MiB or a twentieth of the file system with `None`. With 0 nothing is checked.
    """

    def __init__(self, syscalls: Syscalls, folder: str, spare_bytes: int | None) -> None:
        self._syscalls = syscalls
        self._folder = folder
        self._spare_bytes = spare_bytes

    def check(self, size: int) -> None:
        """Raise `StorageFull` if writing `size` more bytes would leave less than the spare space."""
        if self._spare_bytes == 0:
            return
        free, total = self._syscalls.disk_space(self._folder)
        if total == 0:
            return  # Some file systems do not report their size.
        spare = min(SPARE_BYTES, total // SPARE_DIVISOR) if self._spare_bytes is None else self._spare_bytes
        if free - size < spare:
            raise StorageFull("There is no space left for blobs: the rest of the disk is kept free for deletes.")
