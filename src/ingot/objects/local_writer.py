"""Writers of objects in the blob folder. Each object has at most one."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, TypeVar

from ingot.blobs.errors import UploadEnded, UploadTaken
from ingot.kernel.errors import IngotError, StorageFull, StoreError
from ingot.objects.free_space import FreeSpace
from ingot.objects.layout import Layout
from ingot.objects.syscalls import DISK_FULL_ERRNOS, Syscalls, to_store_error

START_SYNC_BYTES: Final = 4 * 1024 * 1024

T = TypeVar("T")


async def run_in_thread(pool: ThreadPoolExecutor, call: Callable[[], T]) -> T:
    """Call a function in a thread. Raises `StoreError` instead of `OSError`."""
    try:
        future = asyncio.get_running_loop().run_in_executor(pool, call)
    except RuntimeError:
        raise StoreError("The blob folder is closed.") from None
    try:
        return await future
    except OSError as error:
        raise to_store_error(error) from error


class ActiveWriters:
    """The current writer of each storage key, which is always the last one that was added."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_storage_key: dict[str, LocalWriter] = {}

    def add(self, writer: LocalWriter) -> LocalWriter | None:
        """Make a writer the current one, and return the previous one, which the caller must close."""
        with self._lock:
            previous = self._by_storage_key.get(writer.storage_key)
            self._by_storage_key[writer.storage_key] = writer
            return previous

    def remove(self, writer: LocalWriter) -> None:
        """Remove a writer that has ended, unless another one is current."""
        with self._lock:
            if self._by_storage_key.get(writer.storage_key) is writer:
                del self._by_storage_key[writer.storage_key]

    def close_writer(self, storage_key: str) -> None:
        """Close the writer of a storage key, if there is one."""
        with self._lock:
            writer = self._by_storage_key.get(storage_key)
        if writer is not None:
            writer.close(UploadEnded)

    def close_all(self) -> None:
        """Close all writers."""
        with self._lock:
            writers = [*self._by_storage_key.values()]
        for writer in writers:
            writer.close(StoreError)


class LocalWriter:
    """A writer of one object. After an error, or when another writer has resumed the object, all methods raise.

    Each step runs in a thread and holds the lock. When a caller is canceled, its step continues to run. The next call
    that closes or resumes the object waits until that step has ended.
    """

    def __init__(
        self,
        storage_key: str,
        layout: Layout,
        syscalls: Syscalls,
        free_space: FreeSpace,
        writers: ActiveWriters,
        pool: ThreadPoolExecutor,
    ) -> None:
        self.offset = 0
        self.storage_key = storage_key
        self._path = layout.upload_path(storage_key)
        self._final_path = layout.object_path(storage_key)
        self._folders = (layout.shard_folder(storage_key), layout.uploads_folder)
        self._syscalls = syscalls
        self._free_space = free_space
        self._writers = writers
        self._pool = pool
        self._file = -1
        self._allocated = 0
        self._sync_started_offset = 0  # `start_sync` was called for the bytes before this offset.
        self._synced_offset = 0  # The bytes before this offset are durable, and clients may rely on them.
        self._name_is_durable = False  # Whether the name of the file below `uploads/` is durable.
        self._lock = threading.Lock()
        self._end_error: type[IngotError] | None = None

    async def begin(self, size: int | None) -> None:
        """Create the file. If the size is known, reserve its disk space."""
        await run_in_thread(self._pool, partial(self._begin, size))

    async def resume(self, offset: int) -> None:
        """Continue after `offset` bytes. Earlier writers are closed."""
        await run_in_thread(self._pool, partial(self._resume, offset))

    async def write(self, data: bytes | memoryview) -> None:
        """Append bytes. Pieces of `PART_BYTES` are fastest. Raises `StorageFull` or `StoreError`."""
        await run_in_thread(self._pool, partial(self._write, memoryview(data)))

    async def sync(self) -> None:
        """Make the bytes written so far durable."""
        await run_in_thread(self._pool, self._sync)

    async def finish(self) -> None:
        """Complete the object and make it durable."""
        await run_in_thread(self._pool, self._finish)

    async def abort(self) -> None:
        """Stop writing. The file stays until it is resumed, or deleted through the trash."""
        await asyncio.shield(run_in_thread(self._pool, partial(self.close, UploadEnded)))

    def close(self, error: type[IngotError]) -> None:
        """Wait until the current step has ended. Later steps raise `error`."""
        with self._lock:
            self._close(error)

    # -- steps, each in a thread ----------------------------------------------------------------------------

    def _begin(self, size: int | None) -> None:
        with self._step():
            if self._syscalls.exists(self._final_path):
                raise StoreError("There is already an object at this storage key, and each one is written once.")
            self._free_space.check(size or 0)
            self._file = self._syscalls.create(self._path)
            self._writers.add(self)
            if size:
                try:
                    self._syscalls.allocate(self._file, size)
                    self._free_space.check(0)  # Other writers may have reserved their space since the first check.
                except (OSError, StorageFull):
                    self._syscalls.unlink(self._path)
                    raise
                self._allocated = size

    def _resume(self, offset: int) -> None:
        with self._step():
            previous = self._writers.add(self)
            if previous is not None:
                previous.close(UploadTaken)
            if self._syscalls.exists(self._final_path):
                self._undo_finish()
            if offset == 0 and not self._syscalls.exists(self._path):
                self._file = self._syscalls.create(
                    self._path
                )  # A power failure removed the name, which was not synced.
                return
            self._file = self._syscalls.open(self._path, writing=True)
            if self._syscalls.size(self._file) < offset:
                raise StoreError(f"The file of this upload has fewer than {offset} bytes.")
            # Remove the bytes after the offset: they were not synced, or are reserved space.
            self._syscalls.truncate(self._file, offset)
            self.offset = self._sync_started_offset = self._synced_offset = offset
            self._name_is_durable = offset > 0

    def _undo_finish(self) -> None:
        """Move a finished file back to the uploads.

        The process or the power failed after the file was finished and before a row named it as an object, so the
        upload is still open.
        """
        # After a power failure the file can have both names, if only a part of the rename was durable.
        if self._syscalls.exists(self._path):
            self._syscalls.unlink(self._final_path)
        else:
            self._syscalls.rename(self._final_path, self._path)
        # Make the removal of the final name durable before the file changes.
        for folder in reversed(self._folders):
            self._syscalls.sync_folder(folder)

    def _write(self, data: memoryview) -> None:
        with self._step():
            written = 0
            while written < len(data):
                count = self._append(data[written:], self.offset + written)
                if count == 0:
                    raise OSError(errno.EIO, "nothing was written")
                written += count
            self.offset += written
            if self.offset - self._sync_started_offset >= START_SYNC_BYTES:
                self._syscalls.start_sync(
                    self._file, self._sync_started_offset, self.offset - self._sync_started_offset
                )
                self._sync_started_offset = self.offset

    def _append(self, data: memoryview, offset: int) -> int:
        """Write some bytes and return how many. When the disk is full, truncate the file to the synced bytes.

        The database may be on the same disk. It needs space to record that this upload failed; otherwise the upload
        would never end. Bytes within the announced size already have their space; for others, it is checked here.
        """
        try:
            if offset + len(data) > self._allocated:
                self._free_space.check(len(data))
            return self._syscalls.write(self._file, data, offset)
        except (OSError, StorageFull) as error:
            if isinstance(error, StorageFull) or error.errno in DISK_FULL_ERRNOS:
                with suppress(OSError):
                    self._syscalls.truncate(self._file, self._synced_offset)
            raise

    def _sync(self) -> None:
        with self._step():
            self._syscalls.sync(self._file)
            self._synced_offset = self.offset
            if not self._name_is_durable:
                self._syscalls.sync_folder(self._folders[1])
                self._name_is_durable = True

    def _finish(self) -> None:
        with self._step():
            if self._allocated > self.offset:
                self._syscalls.truncate(self._file, self.offset)
            self._syscalls.sync(self._file)
            self._syscalls.rename(self._path, self._final_path)
            for folder in self._folders:
                self._syscalls.sync_folder(folder)
            self._close(UploadEnded)

    @contextmanager
    def _step(self) -> Iterator[None]:
        """Run one step at a time. After a failed step all others raise: a failed sync may have lost any bytes."""
        with self._lock:
            if self._end_error is not None:
                raise self._end_error
            try:
                yield
            except BaseException:
                self._close(StoreError)
                raise

    def _close(self, error: type[IngotError]) -> None:
        if self._end_error is None:
            self._end_error = error
            self._writers.remove(self)
            file, self._file = self._file, -1
            if file >= 0:
                self._syscalls.close(file)
