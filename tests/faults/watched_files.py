"""Files of SQLite that can be watched: a VFS on top of the system's own, with every write and sync passing by.

Shared memory passes through to the system's VFS, so the write-ahead log works as it always does.
"""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path

import apsw

_names = count(1)


class WatchedFile(apsw.VFSFile):
    """An open file whose changes go by way of the watcher."""

    def __init__(self, watcher: Watcher, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else (name or "")
        self.name = Path(path).name
        self.made = bool(flags[0] & apsw.SQLITE_OPEN_CREATE)
        self._watcher = watcher
        super().__init__("", name, flags)

    @property
    def is_log(self) -> bool:
        """Whether this is the write-ahead log."""
        return self.name.endswith("-wal")

    @property
    def is_journal(self) -> bool:
        """Whether this is a rollback journal."""
        return self.name.endswith("-journal")

    @property
    def is_database(self) -> bool:
        """Whether this is the database itself."""
        return bool(self.name) and not self.is_log and not self.is_journal

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        return self._watcher.read(self, amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        with self._watcher.lock:
            self._watcher.write(self, bytes(data), offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        with self._watcher.lock:
            self._watcher.truncate(self, newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._watcher.sync(self, flags)


class Watcher(apsw.VFS):
    """Sees every change. What a subclass does not hand on to `super()` does not happen."""

    def __init__(self) -> None:
        self.vfs = f"watched-{next(_names)}"
        self.lock = threading.RLock()
        super().__init__(self.vfs, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> WatchedFile:  # noqa: N802
        file = WatchedFile(self, name, flags)
        with self.lock:
            self.opened(file)
        return file

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        with self.lock:
            self.delete(filename, syncdir)

    def opened(self, file: WatchedFile) -> None:
        """A file was opened, and made when it was missing."""

    def read(self, file: WatchedFile, amount: int, offset: int) -> bytes:
        """Some bytes are to be read."""
        return apsw.VFSFile.xRead(file, amount, offset)

    def write(self, file: WatchedFile, data: bytes, offset: int) -> None:
        """Some bytes are to be written."""
        apsw.VFSFile.xWrite(file, data, offset)

    def truncate(self, file: WatchedFile, size: int) -> None:
        """A file is to be cut."""
        apsw.VFSFile.xTruncate(file, size)

    def sync(self, file: WatchedFile, flags: int) -> None:
        """What was written is to be made durable."""
        apsw.VFSFile.xSync(file, flags)

    def delete(self, filename: str, sync_folder: bool) -> None:
        """A file is to be deleted."""
        apsw.VFS.xDelete(self, filename, sync_folder)
