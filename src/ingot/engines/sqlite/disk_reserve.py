"""A file that reserves disk space. When the disk is full, it shrinks, so that data can still be deleted."""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

RESERVE_NAME: Final = "ingot.reserve"
RESERVE_BYTES: Final = 16 * 2**20
RESERVE_DIVISOR: Final = 20  # The reserve is at most a twentieth of the file system.
STEP_BYTES: Final = 4 * 2**20  # Released at a time, so that other programs cannot take the whole reserve at once.
OPENING_BYTES: Final = 2**20  # Enough to open a store: its index of the log and the first pages of the log.
REFILL_INTERVAL_SECONDS: Final = 1.0
FILE_MODE: Final = 0o600
USED_HINT: Final = "Free some space on this disk. Until then, the server accepts no new jobs and files, and no claims."

log = structlog.get_logger(__name__)


class DiskReserve:
    """The reserve in a data folder, of up to `size` bytes. Used on the writer thread, after the store was opened.

    An existing reserve is used even with a size of 0. It is then not filled again.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self._path = folder / RESERVE_NAME
        self._size = size
        self._tried_at = -math.inf
        self.is_used = False  # Whether space was released that is not reserved again yet.

    def prepare_opening(self) -> None:
        """Release space if the disk is too full to open a store. The file system may count free space differently."""
        with suppress(OSError):
            if self._free_bytes() < OPENING_BYTES:
                self.release()

    def release(self) -> bool:
        """Release a part of the reserve. Return false if nothing was left."""
        with suppress(OSError):
            reserved = self._path.stat().st_size
            if reserved:
                os.truncate(self._path, max(0, reserved - STEP_BYTES))
                log.warning("disk_reserve_used", left_bytes=max(0, reserved - STEP_BYTES), hint=USED_HINT)
                self.is_used = True
                return True
        return False

    def fill(self) -> bool:
        """Reserve the whole size if the disk has space for it twice, and return whether nothing is used.

        Tries at most once a second.
        """
        now = time.monotonic()
        if now < self._tried_at + REFILL_INTERVAL_SECONDS:
            return not self.is_used
        self._tried_at = now
        with suppress(OSError):
            status = os.statvfs(self._path.parent)
            size = min(self._size, status.f_blocks * status.f_frsize // RESERVE_DIVISOR)
            reserved = self._path.stat().st_size if self._path.exists() else 0
            if self._free_bytes() >= 2 * (size - reserved):
                if reserved < size:
                    self._allocate(size)
                if self.is_used:
                    log.info("disk_reserve_restored", reserved_bytes=size)
                self.is_used = False
        return not self.is_used

    def _allocate(self, size: int) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        try:
            os.posix_fallocate(descriptor, 0, size)
        finally:
            os.close(descriptor)

    def _free_bytes(self) -> int:
        status = os.statvfs(self._path.parent)
        return status.f_bavail * status.f_frsize
