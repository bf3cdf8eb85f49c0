"""Working folders of attempts. The next worker that needs a folder removes those of killed workers."""

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
    """The folder of one worker process, which contains the working folders of its attempts. Thread-safe.

    It is created when the first attempt needs it. Folders that killed workers left behind are removed at the same
    time; they are recognized because no process holds their lock.
    """

    def __init__(self) -> None:
        self._thread_lock = Lock()
        self._path: Path | None = None
        self._lock_descriptor: int | None = None

    def create_workdir(self) -> Path:
        """Create an empty folder for an attempt."""
        with self._thread_lock:
            if self._path is None:
                self._path = self._create_root()
            workdir = self._path / secrets.token_hex(8)  # Other users cannot list the root or guess the name.
            workdir.mkdir(mode=0o700)
            return workdir

    def _create_root(self) -> Path:
        _remove_abandoned_roots(Path(tempfile.gettempdir()))
        while True:
            path = Path(tempfile.mkdtemp(prefix=ROOT_PREFIX))
            path.chmod(0o711)  # Isolated handlers run as other users and must be able to enter.
            self._lock_descriptor = os.open(path / LOCK_FILE_NAME, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock_descriptor, fcntl.LOCK_EX)
            if (path / LOCK_FILE_NAME).exists():
                return path
            os.close(self._lock_descriptor)  # Another worker removed the folder before it was locked.

    def close(self) -> None:
        """Remove the folder with everything in it."""
        with self._thread_lock:
            if self._path is not None:
                shutil.rmtree(self._path, ignore_errors=True)
                self._path = None
            if self._lock_descriptor is not None:
                os.close(self._lock_descriptor)
                self._lock_descriptor = None


def remove_workdir(workdir: Path) -> None:
    """Remove the working folder of an attempt."""
    shutil.rmtree(workdir, ignore_errors=True)


def _remove_abandoned_roots(folder: Path) -> None:
    for root in folder.glob(f"{ROOT_PREFIX}*"):
        with suppress(OSError):  # The lock is held, or another worker is removing the folder at this moment.
            if root.is_symlink() or root.stat().st_uid != os.geteuid():
                continue
            descriptor = os.open(root / LOCK_FILE_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_workdir(root)
            finally:
                os.close(descriptor)
