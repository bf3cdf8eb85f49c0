"""Files that one process has for itself: an `flock`, which the system gives back when the process ends, however."""

from __future__ import annotations

import fcntl
import os
from typing import Final

FILE_MODE: Final = 0o600


def open_locked_file(path: str | os.PathLike[str]) -> int:
    """Open a file, made when there is none, and lock it. Raises `BlockingIOError` when somebody else has it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        lock_descriptor(handle)
    except BaseException:
        os.close(handle)
        raise
    return handle


def lock_descriptor(handle: int) -> None:
    """Lock a file that is open. Raises `BlockingIOError` when somebody else has it, or has opened it once more."""
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def close_locked_file(handle: int) -> None:
    """Let a lock go, also where a forked child still has the file open."""
    fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)
