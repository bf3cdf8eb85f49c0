"""Where attempts keep the files that they fetch: a folder each, gone when they end, and when the worker was killed."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

PREFIX: Final = "ingot-worker-"
LOCK: Final = "lock"


class Workshop:
    """The folder of one worker process, made when the first attempt needs it. From any thread.

    What workers have left behind that were killed is removed then: nobody holds their lock any more.
    """

    def __init__(self) -> None:
        self._door = Lock()
        self._path: Path | None = None
        self._lock: int | None = None

    def room(self) -> Path:
        """An empty folder that nobody else has."""
        with self._door:
            if self._path is None:
                self._path = self._open()
            room = self._path / secrets.token_hex(8)  # Whose name others do not guess.
            room.mkdir(mode=0o700)
            return room

    def _open(self) -> Path:
        _sweep(Path(tempfile.gettempdir()))
        while True:
            path = Path(tempfile.mkdtemp(prefix=PREFIX))
            path.chmod(0o711)  # For isolated handlers, who are somebody else.
            self._lock = os.open(path / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if (path / LOCK).exists():
                return path
            os.close(self._lock)  # Somebody swept it away in the moment before it was locked.

    def close(self) -> None:
        """Remove all of it."""
        with self._door:
            if self._path is not None:
                shutil.rmtree(self._path, ignore_errors=True)
                self._path = None
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None


def clear(room: Path) -> None:
    """Remove the folder of an attempt."""
    shutil.rmtree(room, ignore_errors=True)


def _sweep(folder: Path) -> None:
    for left in folder.glob(f"{PREFIX}*"):
        with suppress(OSError):  # Another user's, or one that somebody else removes at this moment.
            if left.is_symlink() or left.stat().st_uid != os.geteuid():
                continue
            descriptor = os.open(left / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                clear(left)
            finally:
                os.close(descriptor)
