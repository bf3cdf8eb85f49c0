"""Bytes in a folder: `ObjectStore` on a local file system.

An object is written below `uploads/`, synced, renamed to its final name, and both folders are synced: at a final name
there is never a part of one, and one whose `finish` returned survives the loss of power. Nothing has to be repaired at
opening: an upload is a row, and the trash knows what is to go. What no row knows, the stocktaking finds.

Disks are waited for in threads; only bytes that are in memory already are read on the event loop.
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
    """The blob folder in a data folder. One process has it open at a time."""

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
        """Open the blob folder in a data folder, or make it. Raises `StoreLocked` or `StoreMisconfigured`.

        `spare_bytes` of its file system stay free; with `None` as much as suits that.
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
        """Let the folder go; uploads under way are broken off. Doing it twice is fine."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            await run_in_thread(self._pool, self._writers.close_all)
            await asyncio.to_thread(self._pool.shutdown)
            self._syscalls.unlock(lock)

    # -- ObjectStore ----------------------------------------------------------------------------------------

    def new_storage_key(self) -> str:
        """A place that was never used."""
        return new_id()

    def check_free_space(self, size: int) -> None:
        """Raises `StorageFull` when so many bytes would not be taken now.

        It looks on the event loop: what a file system tells of itself is in memory.
        """
        try:
            self._free_space.check(size)
        except OSError as error:
            raise to_store_error(error) from error

    async def write(self, storage_key: str, *, size: int | None) -> LocalWriter:
        """Begin an object, of so many bytes when that is known. Raises `StorageFull` before anything is sent."""
        writer = self._new_writer(storage_key)
        with self._close_if_canceled(writer):
            await writer.begin(size)
        return writer

    async def resume(self, storage_key: str, *, offset: int) -> LocalWriter:
        """Go on with one that was begun, behind its first `offset` bytes, which were synced.

        Raises `StoreError` where these are not there. Who wrote it before gets `UploadTaken` from now on. One that was
        finished, and that nothing names, is among the uploads again.
        """
        writer = self._new_writer(storage_key)
        with self._close_if_canceled(writer):
            await writer.resume(offset)
        return writer

    async def read(self, storage_key: str, start: int, end: int) -> AsyncGenerator[memoryview, None]:
        """The bytes from `start` up to `end`, in parts of `PART_BYTES`, that begin at a multiple of it.

        Raises `BlobDamaged` when the object is not there, is shorter, or cannot be read.
        """
        source = LocalReader(self._syscalls, self._layout.object_path(storage_key))
        try:
            await run_in_thread(self._pool, source.open)
            for offset in range(start, end, PART_BYTES):
                data = memoryview(bytearray(min(PART_BYTES, end - offset)))
                count = source.read_cached(data, offset)
                if count < len(data):
                    await run_in_thread(self._pool, partial(source.fill, data, count, offset))
                else:
                    await asyncio.sleep(0)  # Who reads from memory waits for nothing; others get their turn.
                yield data
        finally:
            # Who closes a deleted file last waits until its room is given back.
            self._run_in_background(source.close)

    async def delete(self, trash: TrashedObject) -> None:
        """Delete an object, and what an unfinished one has left. One that is not there is deleted already.

        The folders are not synced. A file that comes back with the power has a place that nothing names and nobody
        writes again: it takes room, until the stocktaking finds it, and does no harm.
        """
        await run_in_thread(self._pool, partial(self._delete, trash.storage_key))

    async def register_owner(self, database: str) -> str:
        """Remember that the files are this database's, unless they are another's already; answers whose they are."""
        return await run_in_thread(self._pool, partial(register_owner, self._syscalls, self._layout, database))

    async def list_objects(self) -> AsyncGenerator[tuple[str, int], None]:
        """Every place that has a file, finished or not, and how long ago that was last written, in microseconds.

        One that is finished meanwhile may come twice.
        """
        for folder in (self._layout.uploads_folder, *(f"{self._layout.root}/{shelf}" for shelf in SHARD_FOLDERS)):
            for found in await run_in_thread(self._pool, partial(self._list_folder, folder)):
                yield found

    # -- the folder's own -----------------------------------------------------------------------------------

    def _list_folder(self, folder: str) -> list[tuple[str, int]]:
        found, now = [], self._clock.micros()
        for name in filter(is_id, self._syscalls.list_names(folder)):
            if folder not in (self._layout.uploads_folder, self._layout.shard_folder(name)):
                continue  # It is not one of ours: we would look for it elsewhere.
            with suppress(FileNotFoundError):
                found.append((name, max(0, now - self._syscalls.modified_at(f"{folder}/{name}"))))
        return found

    def _new_writer(self, storage_key: str) -> LocalWriter:
        return LocalWriter(storage_key, self._layout, self._syscalls, self._free_space, self._writers, self._pool)

    def _delete(self, storage_key: str) -> None:
        names = (self._layout.upload_path(storage_key), self._layout.object_path(storage_key))
        self._writers.close_writer(storage_key)
        for name in names:
            with suppress(FileNotFoundError):
                self._syscalls.unlink(name)

    @contextmanager
    def _close_if_canceled(self, writer: LocalWriter) -> Iterator[None]:
        """A writer that its caller does not wait for is nobody's."""
        try:
            yield
        except asyncio.CancelledError:
            self._run_in_background(partial(writer.close, UploadEnded))
            raise

    def _run_in_background(self, call: Callable[[], None]) -> None:
        """Do something in a thread that nobody waits for."""
        try:
            self._pool.submit(call)
        except RuntimeError:  # The store is closed.
            call()


class LocalReader:
    """An object that is read. The lock keeps the file open until a read that nobody waits for any more has ended."""

    def __init__(self, files: Syscalls, path: str) -> None:
        self._syscalls = files
        self._path = path
        self._file = -1
        self._closed = False
        self._lock = threading.Lock()

    def open(self) -> None:
        """Open the file, in a thread. Raises `BlobDamaged` when it is not there."""
        with self._lock:
            if not self._closed:
                try:
                    self._file = self._syscalls.open(self._path)
                except FileNotFoundError:
                    raise BlobDamaged("The file of this blob is not there.") from None

    def read_cached(self, into: memoryview, offset: int) -> int:
        """Read what is in memory, on the event loop; answers how many bytes that were."""
        return self._syscalls.read_cached(self._file, into, offset)

    def fill(self, into: memoryview, count: int, offset: int) -> None:
        """Read the rest, behind the first `count` bytes, in a thread. Raises `BlobDamaged`."""
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
        """Let the file go."""
        with self._lock:
            self._closed = True
            file, self._file = self._file, -1
            if file >= 0:
                self._syscalls.close(file)
