"""The system calls of the folder store. All its access to a disk goes through this class.

Tests replace the class with a simulated disk that loses unsynced data or is full.
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

# The os module does not have this call. It only speeds up a later sync, and some systems do not have it.
_sync_file_range: Final = getattr(ctypes.CDLL(None), "sync_file_range", None)
_SYNC_FILE_RANGE_WRITE: Final = 2


class Syscalls:
    """The calls of the operating system. All methods raise `OSError`."""

    def __init__(self) -> None:
        self._supports_nowait = True

    # -- folders --------------------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        """Return whether a file, a folder or a link has this name."""
        return os.path.lexists(path)

    def make_folder(self, path: str) -> None:
        """Create a folder that only this user can access."""
        os.mkdir(path, FOLDER_MODE)

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def list_names(self, path: str) -> list[str]:
        """Return the names in a folder."""
        return os.listdir(path)

    def modified_at(self, path: str) -> int:
        """Return when a file was last modified, in microseconds since 1970 UTC."""
        return os.stat(path, follow_symlinks=False).st_mtime_ns // 1000

    def rename(self, path: str, to: str) -> None:
        """Rename a file."""
        os.rename(path, to)

    def unlink(self, path: str) -> None:
        """Remove a file by its name."""
        os.unlink(path)

    def disk_space(self, path: str) -> tuple[int, int]:
        """Return the bytes free for this user and the total bytes of the file system of a path."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize

    # -- files ----------------------------------------------------------------------------------------------

    def lock(self, path: str) -> int:
        """Open and lock a file. Raises `BlockingIOError` if another process has locked it."""
        return open_locked_file(path)

    def unlock(self, handle: int) -> None:
        """Release a lock, even if a forked child still has the file open."""
        close_locked_file(handle)

    def create(self, path: str) -> int:
        """Create a file that does not exist, for reading and writing."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)

    def open(self, path: str, *, writing: bool = False) -> int:
        """Open an existing file."""
        return os.open(path, (os.O_RDWR if writing else os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC)

    def close(self, handle: int) -> None:
        """Close a file."""
        os.close(handle)

    def size(self, handle: int) -> int:
        """Return the size of a file in bytes."""
        return os.fstat(handle).st_size

    def allocate(self, handle: int, size: int) -> None:
        """Reserve disk space for a file. On a file system that cannot, a later write may find the disk full."""
        try:
            os.posix_fallocate(handle, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise

    def truncate(self, handle: int, size: int) -> None:
        """Change the size of a file."""
        os.ftruncate(handle, size)

    def write(self, handle: int, data: memoryview, offset: int) -> int:
        """Write some of the bytes at an offset and return how many."""
        return os.pwrite(handle, data, offset)

    def start_sync(self, handle: int, offset: int, count: int) -> None:
        """Start to write these bytes to the disk in the background, so that a later sync takes less time."""
        if _sync_file_range is not None:
            _sync_file_range(
                handle, ctypes.c_int64(offset), ctypes.c_int64(count), ctypes.c_uint(_SYNC_FILE_RANGE_WRITE)
            )

    def sync(self, handle: int) -> None:
        """Make the bytes and the size of a file durable."""
        os.fdatasync(handle)

    def read(self, handle: int, into: memoryview, offset: int) -> int:
        """Read some bytes from an offset on and return how many."""
        return os.preadv(handle, [into], offset)

    def read_cached(self, handle: int, into: memoryview, offset: int) -> int:
        """Read bytes that are in the page cache and return how many. Never waits for the disk."""
        if not self._supports_nowait:
            return 0
        try:
            return os.preadv(handle, [into], offset, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                self._supports_nowait = False  # Some file systems do not support this flag.
            return 0  # The caller continues with `read`, which reports the error.


def to_store_error(error: OSError) -> StoreError:
    """Convert an error of the operating system."""
    if error.errno in DISK_FULL_ERRNOS:
        return StorageFull("There is no space left for blobs.")
    return StoreError(f"The blob folder failed: {error.strerror or error}.")
