"""The system calls of the folder store, one behind each method: the only place where it touches a disk.

Proofs hand in a disk of their own, which loses what was not synced, or has no room.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

from ingot.kernel.errors import StorageFull, StoreError
from ingot.kernel.file_locks import close_locked_file, open_locked_file

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
DISK_FULL_ERRNOS: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))

# Python has no name for it. It is a hint, and not everywhere.
_sync_file_range: Final = getattr(ctypes.CDLL(None), "sync_file_range", None)
_SYNC_FILE_RANGE_WRITE: Final = 2


class Syscalls:
    """Files as the system has them. Everything raises `OSError`, as the system does."""

    def __init__(self) -> None:
        self._supports_nowait = True

    # -- folders --------------------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        """Tell whether there is something with this name."""
        return os.path.lexists(path)

    def make_folder(self, path: str) -> None:
        """Make a folder that only we can look into."""
        os.mkdir(path, FOLDER_MODE)

    def sync_folder(self, path: str) -> None:
        """The names in a folder are durable when this returns."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def list_names(self, path: str) -> list[str]:
        """What is in a folder."""
        return os.listdir(path)

    def modified_at(self, path: str) -> int:
        """When a file was last written to, in microseconds since 1970 UTC."""
        return os.stat(path, follow_symlinks=False).st_mtime_ns // 1000

    def rename(self, path: str, to: str) -> None:
        """Give a file another name."""
        os.rename(path, to)

    def unlink(self, path: str) -> None:
        """Take a name away."""
        os.unlink(path)

    def disk_space(self, path: str) -> tuple[int, int]:
        """How many bytes are free for us in the file system that this is on, and how many it has."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    # -- files ----------------------------------------------------------------------------------------------

    def lock(self, path: str) -> int:
        """Open a file that nobody else has locked, and lock it. Raises `BlockingIOError`."""
        return open_locked_file(path)

    def unlock(self, handle: int) -> None:
        """Let a lock go, also where a forked child still has the file open."""
        close_locked_file(handle)

    def create(self, path: str) -> int:
        """Make a file that is not there yet."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)

    def open(self, path: str, *, writing: bool = False) -> int:
        """Open a file that is there."""
        return os.open(path, (os.O_RDWR if writing else os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC)

    def close(self, handle: int) -> None:
        """Let a file go."""
        os.close(handle)

    def size(self, handle: int) -> int:
        """How many bytes a file has."""
        return os.fstat(handle).st_size

    def allocate(self, handle: int, size: int) -> None:
        """Take the room for so many bytes. Where a file system cannot say, it is found out later."""
        try:
            os.posix_fallocate(handle, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise

    def truncate(self, handle: int, size: int) -> None:
        """Make a file this long."""
        os.ftruncate(handle, size)

    def write(self, handle: int, data: memoryview, offset: int) -> int:
        """Write some of these bytes at an offset; answers how many."""
        return os.pwrite(handle, data, offset)

    def start_sync(self, handle: int, offset: int, count: int) -> None:
        """Have these bytes written to the disk from now on, so that a sync later has less to wait for."""
        if _sync_file_range is not None:
            _sync_file_range(
                handle, ctypes.c_int64(offset), ctypes.c_int64(count), ctypes.c_uint(_SYNC_FILE_RANGE_WRITE)
            )

    def sync(self, handle: int) -> None:
        """The bytes of a file, and how many they are, are durable when this returns."""
        os.fdatasync(handle)

    def read(self, handle: int, into: memoryview, offset: int) -> int:
        """Read some bytes from an offset on; answers how many."""
        return os.preadv(handle, [into], offset)

    def read_cached(self, handle: int, into: memoryview, offset: int) -> int:
        """The same, of what is in memory: it never waits for a disk."""
        if not self._supports_nowait:
            return 0
        try:
            return os.preadv(handle, [into], offset, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                self._supports_nowait = False  # Some file systems never tell.
            return 0  # An error shows again in `read`.


def to_store_error(error: OSError) -> StoreError:
    """What the system said, as an error of ours."""
    if error.errno in DISK_FULL_ERRNOS:
        return StorageFull("There is no room left for blobs.")
    return StoreError(f"The blob folder failed: {error.strerror or error}.")
