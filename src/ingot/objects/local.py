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
from ingot.blobs.model import PART_BYTES, Trash
from ingot.kernel.clock import Clock
from ingot.kernel.ids import is_id, new_id
from ingot.objects.files import Files, explain
from ingot.objects.layout import SHELVES, OpenFolder, belong_to, open_folder
from ingot.objects.room import Room
from ingot.objects.writing import LocalWriter, Writers, in_thread

THREADS: Final = 12


class LocalStore:
    """The blob folder in a data folder. One process has it open at a time."""

    def __init__(
        self, opened: OpenFolder, *, clock: Clock, files: Files, spare_bytes: int | None, pool: ThreadPoolExecutor
    ) -> None:
        self.store_id = opened.store_id
        self._layout = opened.layout
        self._lock = opened.lock
        self._clock = clock
        self._files = files
        self._room = Room(files, opened.layout.root, spare_bytes)
        self._pool = pool
        self._writers = Writers()

    @classmethod
    async def open(
        cls, folder: Path, *, clock: Clock, files: Files | None = None, spare_bytes: int | None = 0
    ) -> LocalStore:
        """Open the blob folder in a data folder, or make it. Raises `StoreLocked` or `StoreMisconfigured`.

        `spare_bytes` of its file system stay free; with `None` as much as suits that.
        """
        files = files or Files()
        pool = ThreadPoolExecutor(THREADS, thread_name_prefix="objects")
        try:
            opened = await in_thread(pool, partial(open_folder, files, folder))
        except BaseException:
            pool.shutdown(wait=False)
            raise
        return cls(opened, clock=clock, files=files, spare_bytes=spare_bytes, pool=pool)

    async def close(self) -> None:
        """Let the folder go; uploads under way are broken off. Doing it twice is fine."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            await in_thread(self._pool, self._writers.shut_all)
            await asyncio.to_thread(self._pool.shutdown)
            self._files.unlock(lock)

    # -- ObjectStore ----------------------------------------------------------------------------------------

    def new_place(self) -> str:
        """A place that was never used."""
        return new_id()

    def expect_room(self, size: int) -> None:
        """Raises `StorageFull` when so many bytes would not be taken now.

        It looks on the event loop: what a file system tells of itself is in memory.
        """
        try:
            self._room.expect(size)
        except OSError as error:
            raise explain(error) from error

    async def write(self, place: str, *, size: int | None) -> LocalWriter:
        """Begin an object, of so many bytes when that is known. Raises `StorageFull` before anything is sent."""
        writer = self._writer(place)
        with self._shutting_if_canceled(writer):
            await writer.begin(size)
        return writer

    async def resume(self, place: str, *, offset: int) -> LocalWriter:
        """Go on with one that was begun, behind its first `offset` bytes, which were synced.

        Raises `StoreError` where these are not there. Who wrote it before gets `UploadTaken` from now on. One that was
        finished, and that nothing names, is among the uploads again.
        """
        writer = self._writer(place)
        with self._shutting_if_canceled(writer):
            await writer.go_on(offset)
        return writer

    async def read(self, place: str, start: int, end: int) -> AsyncGenerator[memoryview, None]:
        """The bytes from `start` up to `end`, in parts of `PART_BYTES`, that begin at a multiple of it.

        Raises `BlobDamaged` when the object is not there, is shorter, or cannot be read.
        """
        source = Source(self._files, self._layout.finished(place))
        try:
            await in_thread(self._pool, source.open)
            for offset in range(start, end, PART_BYTES):
                data = memoryview(bytearray(min(PART_BYTES, end - offset)))
                count = source.read_cached(data, offset)
                if count < len(data):
                    await in_thread(self._pool, partial(source.fill, data, count, offset))
                else:
                    await asyncio.sleep(0)  # Who reads from memory waits for nothing; others get their turn.
                yield data
        finally:
            # Who closes a deleted file last waits until its room is given back.
            self._later(source.close)

    async def delete(self, trash: Trash) -> None:
        """Delete an object, and what an unfinished one has left. One that is not there is deleted already.

        The folders are not synced. A file that comes back with the power has a place that nothing names and nobody
        writes again: it takes room, until the stocktaking finds it, and does no harm.
        """
        await in_thread(self._pool, partial(self._delete, trash.place))

    async def belong_to(self, database: str) -> str:
        """Remember that the files are this database's, unless they are another's already; answers whose they are."""
        return await in_thread(self._pool, partial(belong_to, self._files, self._layout, database))

    async def list_places(self) -> AsyncGenerator[tuple[str, int], None]:
        """Every place that has a file, finished or not, and how long ago that was last written, in microseconds.

        One that is finished meanwhile may come twice.
        """
        for folder in (self._layout.uploads, *(f"{self._layout.root}/{shelf}" for shelf in SHELVES)):
            for found in await in_thread(self._pool, partial(self._look_into, folder)):
                yield found

    # -- the folder's own -----------------------------------------------------------------------------------

    def _look_into(self, folder: str) -> list[tuple[str, int]]:
        found, now = [], self._clock.micros()
        for name in filter(is_id, self._files.list_names(folder)):
            if folder not in (self._layout.uploads, self._layout.shelf(name)):
                continue  # It is not one of ours: we would look for it elsewhere.
            with suppress(FileNotFoundError):
                found.append((name, max(0, now - self._files.changed_at(f"{folder}/{name}"))))
        return found

    def _writer(self, place: str) -> LocalWriter:
        return LocalWriter(place, self._layout, self._files, self._room, self._writers, self._pool)

    def _delete(self, place: str) -> None:
        names = (self._layout.unfinished(place), self._layout.finished(place))
        self._writers.shut_out(place)
        for name in names:
            with suppress(FileNotFoundError):
                self._files.unlink(name)

    @contextmanager
    def _shutting_if_canceled(self, writer: LocalWriter) -> Iterator[None]:
        """A writer that its caller does not wait for is nobody's."""
        try:
            yield
        except asyncio.CancelledError:
            self._later(partial(writer.shut, UploadEnded))
            raise

    def _later(self, call: Callable[[], None]) -> None:
        """Do something in a thread that nobody waits for."""
        try:
            self._pool.submit(call)
        except RuntimeError:  # The store is closed.
            call()


class Source:
    """An object that is read. The lock keeps the file open until a read that nobody waits for any more has ended."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._file = -1
        self._closed = False
        self._lock = threading.Lock()

    def open(self) -> None:
        """Open the file, in a thread. Raises `BlobDamaged` when it is not there."""
        with self._lock:
            if not self._closed:
                try:
                    self._file = self._files.open(self._path)
                except FileNotFoundError:
                    raise BlobDamaged("The file of this blob is not there.") from None

    def read_cached(self, into: memoryview, offset: int) -> int:
        """Read what is in memory, on the event loop; answers how many bytes that were."""
        return self._files.read_cached(self._file, into, offset)

    def fill(self, into: memoryview, count: int, offset: int) -> None:
        """Read the rest, behind the first `count` bytes, in a thread. Raises `BlobDamaged`."""
        with self._lock:
            while count < len(into):
                try:
                    read = self._files.read(self._file, into[count:], offset + count)
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
                self._files.close(file)
