"""The object store in a folder on a local file system.

An object is written below `uploads/`, synced and renamed to its final name, and both folders are synced. A file with a
final name is therefore always complete, and survives a power failure once `finish` has returned. Nothing needs repair
when the folder is opened: uploads and the trash are rows of the database, and the orphan sweep finds all other files.

Calls that may wait for the disk run in threads. Only bytes in the page cache are read on the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from ingot.blobs.errors import BlobDamaged, UploadEnded
from ingot.blobs.model import PART_BYTES, TrashedObject
from ingot.kernel.clock import Clock
from ingot.kernel.ids import is_id, new_id
from ingot.objects.free_space import FreeSpace
from ingot.objects.layout import SHARD_FOLDERS, OpenFolder, open_folder, register_owner
from ingot.objects.local_writer import ActiveWriters, LocalWriter, run_in_thread
from ingot.objects.syscalls import Syscalls, to_store_error

THREADS: Final = 12


class LocalStore:
    """The object store in the blob folder of a data folder. Only one process can have it open."""

    is_exclusive = True

    def __init__(
        self, opened: OpenFolder, *, clock: Clock, syscalls: Syscalls, spare_bytes: int | None, pool: ThreadPoolExecutor
    ) -> None:
        self.store_id = opened.store_id
        self._layout = opened.layout
        self._lock = opened.lock
        self._clock = clock
        self._syscalls = syscalls
        self._free_space = FreeSpace(syscalls, opened.layout.root, spare_bytes)
        self._pool = pool
        self._writers = ActiveWriters()

    @classmethod
    async def open(
        cls, folder: Path, *, clock: Clock, syscalls: Syscalls | None = None, spare_bytes: int | None = 0
    ) -> LocalStore:
        """Open the blob folder in a data folder, and create it if it is missing.

        `spare_bytes` of the file system stay free. With `None` the amount depends on its size.

        Raises `StoreLocked` or `StoreMisconfigured`.
        """
        syscalls = syscalls or Syscalls()
        pool = ThreadPoolExecutor(THREADS, thread_name_prefix="objects")
        try:
            opened = await run_in_thread(pool, partial(open_folder, syscalls, folder))
        except BaseException:
            pool.shutdown(wait=False)
            raise
        return cls(opened, clock=clock, syscalls=syscalls, spare_bytes=spare_bytes, pool=pool)

    async def close(self) -> None:
        """Stop all writers and release the folder. A second call does nothing."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            await run_in_thread(self._pool, self._writers.close_all)
            await asyncio.to_thread(self._pool.shutdown)
            self._syscalls.unlock(lock)

    # -- ObjectStore ----------------------------------------------------------------------------------------

    def new_storage_key(self) -> str:
        """Create a storage key that has never been used."""
        return new_id()

    def check_free_space(self, size: int) -> None:
        """Raise `StorageFull` if `size` more bytes do not fit now.

        Runs on the event loop, because file systems keep these numbers in memory.
        """
        try:
            self._free_space.check(size)
        except OSError as error:
            raise to_store_error(error) from error

    async def write(self, storage_key: str, *, size: int | None) -> LocalWriter:
        """Begin an object of `size` bytes, or of unknown size. Raises `StorageFull` before any byte is written."""
        writer = self._new_writer(storage_key)
        with self._close_if_canceled(writer):
            await writer.begin(size)
        return writer

    async def resume(self, storage_key: str, *, offset: int) -> LocalWriter:
        """Continue an object after its first `offset` bytes, which were synced.

        Raises `StoreError` if these bytes are not there. Earlier writers raise `UploadTaken` from now on. An object
        that was finished but is not named by a row becomes unfinished again.
        """
        writer = self._new_writer(storage_key)
        with self._close_if_canceled(writer):
            await writer.resume(offset)
        return writer

    async def read(self, storage_key: str, start: int, end: int) -> AsyncGenerator[memoryview, None]:
        """Yield the bytes from `start`, a multiple of `PART_BYTES`, up to `end` in parts of that size.

        Raises `BlobDamaged` if the object is missing, is shorter, or cannot be read.
        """
        reader = LocalReader(self._syscalls, self._layout.object_path(storage_key))
        try:
            await run_in_thread(self._pool, reader.open)
            for offset in range(start, end, PART_BYTES):
                data = memoryview(bytearray(min(PART_BYTES, end - offset)))
                count = reader.read_cached(data, offset)
                if count < len(data):
                    await run_in_thread(self._pool, partial(reader.fill, data, count, offset))
                else:
                    await asyncio.sleep(0)  # Let other tasks run: reads from the page cache never wait.
                yield data
        finally:
            # The last close of a deleted file waits until its disk space is freed.
            self._run_in_background(reader.close)

    async def delete(self, trash: TrashedObject) -> None:
        """Delete an object, finished or not. Succeeds if there is none.

        The folders are not synced. A file that reappears after a power failure does no harm: no row names its storage
        key, nothing writes to it again, and the orphan sweep deletes it.
        """
        await run_in_thread(self._pool, partial(self._delete, trash.storage_key))

    def write_memory_bytes(self, size: int | None) -> int:
        """Return the size of a part: larger files are written and read in parts."""
        return PART_BYTES if size is None else min(size, PART_BYTES)

    def read_memory_bytes(self, size: int) -> int:
        """Return the size of a part."""
        return min(size, PART_BYTES)

    async def etag(self, _: str) -> str | None:
        """Return `None`: files have no ETag."""
        return None

    async def register_owner(self, database: str) -> str:
        """Record `database` as the owner of the files unless they belong to another one, and return the owner."""
        return await run_in_thread(self._pool, partial(register_owner, self._syscalls, self._layout, database))

    async def list_objects(self) -> AsyncGenerator[tuple[str, int], None]:
        """Yield the storage key of each object, finished or not, and the microseconds since its last write.

        An object that is finished meanwhile may be yielded twice.
        """
        for folder in (self._layout.uploads_folder, *(f"{self._layout.root}/{shard}" for shard in SHARD_FOLDERS)):
            for key_and_age in await run_in_thread(self._pool, partial(self._list_folder, folder)):
                yield key_and_age

    # -- internals ------------------------------------------------------------------------------------------

    def _list_folder(self, folder: str) -> list[tuple[str, int]]:
        keys_and_ages, now = [], self._clock.micros()
        for name in filter(is_id, self._syscalls.list_names(folder)):
            if folder not in (self._layout.uploads_folder, self._layout.shard_folder(name)):
                continue  # Not a file of this store: its storage key belongs in another folder.
            with suppress(FileNotFoundError):
                keys_and_ages.append((name, max(0, now - self._syscalls.modified_at(f"{folder}/{name}"))))
        return keys_and_ages

    def _new_writer(self, storage_key: str) -> LocalWriter:
        return LocalWriter(storage_key, self._layout, self._syscalls, self._free_space, self._writers, self._pool)

    def _delete(self, storage_key: str) -> None:
        paths = (self._layout.upload_path(storage_key), self._layout.object_path(storage_key))
        self._writers.close_writer(storage_key)
        for path in paths:
            with suppress(FileNotFoundError):
                self._syscalls.unlink(path)

    @contextmanager
    def _close_if_canceled(self, writer: LocalWriter) -> Iterator[None]:
        """Close a new writer if its caller is canceled, because nobody else has it."""
        try:
            yield
        except asyncio.CancelledError:
            self._run_in_background(partial(writer.close, UploadEnded))
            raise

    def _run_in_background(self, call: Callable[[], None]) -> None:
        """Call a function in a thread without waiting for it."""
        try:
            self._pool.submit(call)
        except RuntimeError:  # The store and its pool are closed.
            call()


class LocalReader:
    """A reader of one object. The lock keeps the file open until a read of a canceled caller has ended."""

    def __init__(self, syscalls: Syscalls, path: str) -> None:
        self._syscalls = syscalls
        self._path = path
        self._file = -1
        self._closed = False
        self._lock = threading.Lock()

    def open(self) -> None:
        """Open the file. Call it in a thread. Raises `BlobDamaged` if the file is missing."""
        with self._lock:
            if not self._closed:
                try:
                    self._file = self._syscalls.open(self._path)
                except FileNotFoundError:
                    raise BlobDamaged("The file of this blob is missing.") from None

    def read_cached(self, into: memoryview, offset: int) -> int:
        """Read bytes from the page cache and return how many. Call it on the event loop."""
        return self._syscalls.read_cached(self._file, into, offset)

    def fill(self, into: memoryview, count: int, offset: int) -> None:
        """Read the bytes after the first `count`. Call it in a thread. Raises `BlobDamaged`."""
        with self._lock:
            while count < len(into):
                try:
                    read = self._syscalls.read(self._file, into[count:], offset + count)
                except OSError as error:
                    if error.errno != errno.EIO:
                        raise
                    raise BlobDamaged("The file of this blob cannot be read.") from error
                if read == 0:
                    raise BlobDamaged("The file of this blob is too short.")
                count += read

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._closed = True
            file, self._file = self._file, -1
            if file >= 0:
                self._syscalls.close(file)
