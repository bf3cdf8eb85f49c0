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

ROOT_PREFIX: Final = "ingot-worker-"
LOCK_FILE_NAME: Final = "lock"


class WorkdirRoot:
    """The folder of one worker process, made when the first attempt needs it. From any thread.

    What workers have left behind that were killed is removed then: nobody holds their lock any more.
    """

    def __init__(self) -> None:
        self._thread_lock = Lock()
        self._path: Path | None = None
        self._lock_descriptor: int | None = None

    def create_workdir(self) -> Path:
        """An empty folder that nobody else has."""
        with self._thread_lock:
            if self._path is None:
                self._path = self._create_root()
            room = self._path / secrets.token_hex(8)  # Whose name others do not guess.
            room.mkdir(mode=0o700)
            return room

    def _create_root(self) -> Path:
        _remove_abandoned_roots(Path(tempfile.gettempdir()))
        while True:
            path = Path(tempfile.mkdtemp(prefix=ROOT_PREFIX))
            path.chmod(0o711)  # For isolated handlers, who are somebody else.
            self._lock_descriptor = os.open(path / LOCK_FILE_NAME, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock_descriptor, fcntl.LOCK_EX)
            if (path / LOCK_FILE_NAME).exists():
                return path
            os.close(self._lock_descriptor)  # Somebody swept it away in the moment before it was locked.

    def close(self) -> None:
        """Remove all of it."""
        with self._thread_lock:
            if self._path is not None:
                shutil.rmtree(self._path, ignore_errors=True)
                self._path = None
            if self._lock_descriptor is not None:
                os.close(self._lock_descriptor)
                self._lock_descriptor = None


def remove_workdir(room: Path) -> None:
    """Remove the folder of an attempt."""
    shutil.rmtree(room, ignore_errors=True)


def _remove_abandoned_roots(folder: Path) -> None:
    for left in folder.glob(f"{ROOT_PREFIX}*"):
        with suppress(OSError):  # Another user's, or one that somebody else removes at this moment.
            if left.is_symlink() or left.stat().st_uid != os.geteuid():
                continue
            descriptor = os.open(left / LOCK_FILE_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_workdir(left)
            finally:
                os.close(descriptor)
