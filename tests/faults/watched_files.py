"""A SQLite VFS on top of the system's own, through which every read, write and sync passes.

Shared memory is left to the system's VFS, so that the write-ahead log works as usual.
"""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path

import apsw

_names = count(1)


class WatchedFile(apsw.VFSFile):
    """An open file that passes its calls to the VFS."""

    def __init__(self, vfs: WatchingVFS, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else (name or "")
        self.name = Path(path).name
        self.may_create = bool(flags[0] & apsw.SQLITE_OPEN_CREATE)
        self._vfs = vfs
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
        return self._vfs.read(self, amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        with self._vfs.lock:
            self._vfs.write(self, bytes(data), offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        with self._vfs.lock:
            self._vfs.truncate(self, newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._vfs.sync(self, flags)


class WatchingVFS(apsw.VFS):
    """Receives every call. A call that a subclass does not pass on to `super()` has no effect."""

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
        """Called after a file was opened, and created if it was missing."""

    def read(self, file: WatchedFile, amount: int, offset: int) -> bytes:
        """Read bytes."""
        return apsw.VFSFile.xRead(file, amount, offset)

    def write(self, file: WatchedFile, data: bytes, offset: int) -> None:
        """Write bytes."""
        apsw.VFSFile.xWrite(file, data, offset)

    def truncate(self, file: WatchedFile, size: int) -> None:
        """Change the size of a file."""
        apsw.VFSFile.xTruncate(file, size)

    def sync(self, file: WatchedFile, flags: int) -> None:
        """Make all writes durable."""
        apsw.VFSFile.xSync(file, flags)

    def delete(self, filename: str, sync_folder: bool) -> None:
        """Delete a file."""
        apsw.VFS.xDelete(self, filename, sync_folder)
