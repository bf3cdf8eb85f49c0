"""File locks (`flock`) that exclude other processes. The system releases them when the process ends or crashes."""

from __future__ import annotations

import fcntl
import os
from typing import Final

FILE_MODE: Final = 0o600


def open_locked_file(path: str | os.PathLike[str]) -> int:
    """Open and lock a file, and create it if it is missing. Raises `BlockingIOError` if it is already locked."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        lock_descriptor(handle)
    except BaseException:
        os.close(handle)
        raise
    return handle


def lock_descriptor(handle: int) -> None:
    """Lock an open file.

    Raises `BlockingIOError` if it is locked through another descriptor, even one of this process.
    """
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def close_locked_file(handle: int) -> None:
    """Release the lock and close the file. This also works while a forked child still has the file open."""
    fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)
