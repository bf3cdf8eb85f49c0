"""An object on its way into the blob folder, and who may write it."""

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
from ingot.objects.files import FULL, Files, explain
from ingot.objects.layout import Layout
from ingot.objects.room import Room

START_SYNC_BYTES: Final = 4 * 1024 * 1024

T = TypeVar("T")


async def in_thread(pool: ThreadPoolExecutor, call: Callable[[], T]) -> T:
    """Do something in a thread; what the system says comes out as an error of ours."""
    try:
        waiting = asyncio.get_running_loop().run_in_executor(pool, call)
    except RuntimeError:
        raise StoreError("The blob folder is closed.") from None
    try:
        return await waiting
    except OSError as error:
        raise explain(error) from error


class Writers:
    """Who writes which place: nobody but the one that came last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at: dict[str, LocalWriter] = {}

    def add(self, writer: LocalWriter) -> LocalWriter | None:
        """This one came last; answers the one before, which has to be shut out."""
        with self._lock:
            before = self._at.get(writer.place)
            self._at[writer.place] = writer
            return before

    def remove(self, writer: LocalWriter) -> None:
        """It writes no more."""
        with self._lock:
            if self._at.get(writer.place) is writer:
                del self._at[writer.place]

    def shut_out(self, place: str) -> None:
        """Nobody writes this place any more when this returns."""
        with self._lock:
            writer = self._at.get(place)
        if writer is not None:
            writer.shut(UploadEnded)

    def shut_all(self) -> None:
        """Nobody writes anything any more when this returns."""
        with self._lock:
            writers = [*self._at.values()]
        for writer in writers:
            writer.shut(StoreError)


class LocalWriter:
    """An object on its way in. After an error, or when another goes on with it, it only raises.

    Each step runs in a thread and holds the lock. A caller that is canceled leaves its step running; whoever comes
    next, to close the file or to go on with it, waits for the end of that.
    """

    def __init__(
        self, place: str, layout: Layout, files: Files, room: Room, writers: Writers, pool: ThreadPoolExecutor
    ) -> None:
        self.offset = 0
        self.place = place
        self._path = layout.unfinished(place)
        self._final_path = layout.finished(place)
        self._folders = (layout.shelf(place), layout.uploads)
        self._files = files
        self._room = room
        self._writers = writers
        self._pool = pool
        self._file = -1
        self._allocated = 0
        self._started = 0  # The disk was asked to write what is before this offset,
        self._safe = 0  # and this much was synced: somebody may count on it.
        self._named = False  # Its name below `uploads/` is durable.
        self._lock = threading.Lock()
        self._ended: type[IngotError] | None = None

    async def begin(self, size: int | None) -> None:
        """Make the file, and take the room for it when its size is known."""
        await in_thread(self._pool, partial(self._begin, size))

    async def go_on(self, offset: int) -> None:
        """Go on behind so many bytes; who wrote before is shut out."""
        await in_thread(self._pool, partial(self._go_on, offset))

    async def write(self, data: bytes | memoryview) -> None:
        """Append bytes. Raises `StorageFull` or `StoreError`. Pieces of `PART_BYTES` cost the least."""
        await in_thread(self._pool, partial(self._write, memoryview(data)))

    async def sync(self) -> None:
        """What was written so far survives power loss when this returns."""
        await in_thread(self._pool, self._sync)

    async def finish(self) -> None:
        """The object is there, whole and durable, when this returns."""
        await in_thread(self._pool, self._finish)

    async def abort(self) -> None:
        """Stop. What was written stays, for the trash or for who resumes it."""
        await asyncio.shield(in_thread(self._pool, partial(self.shut, UploadEnded)))

    def shut(self, why: type[IngotError]) -> None:
        """Wait for the end of the step that is under way, and let no other follow."""
        with self._lock:
            self._end(why)

    # -- steps, each in a thread ----------------------------------------------------------------------------

    def _begin(self, size: int | None) -> None:
        with self._step():
            if self._files.exists(self._final_path):
                raise StoreError("A place is written once, and there is an object at this one.")
            self._room.expect(size or 0)
            self._file = self._files.create(self._path)
            self._writers.add(self)
            if size:
                try:
                    self._files.allocate(self._file, size)
                    self._room.expect(0)  # Others that began at the same time have taken theirs too.
                except (OSError, StorageFull):
                    self._files.unlink(self._path)
                    raise
                self._allocated = size

    def _go_on(self, offset: int) -> None:
        with self._step():
            before = self._writers.add(self)
            if before is not None:
                before.shut(UploadTaken)
            if self._files.exists(self._final_path):
                self._take_back()
            if offset == 0 and not self._files.exists(self._path):
                self._file = self._files.create(self._path)  # Its name was not synced, and power was lost.
                return
            self._file = self._files.open(self._path, writing=True)
            if self._files.size(self._file) < offset:
                raise StoreError(f"Fewer than {offset} bytes of this upload are there.")
            # What is behind was not synced, or is room that was taken: neither belongs to what comes.
            self._files.truncate(self._file, offset)
            self.offset = self._started = self._safe = offset
            self._named = offset > 0

    def _take_back(self) -> None:
        """It was finished, and then power was lost, or the process: nothing names it, so it is an upload still."""
        if self._files.exists(self._path):  # The rename was made durable by half: both names are one file.
            self._files.unlink(self._final_path)
        else:
            self._files.rename(self._final_path, self._path)
        # Before it changes, it is surely not at its final name any more.
        for folder in reversed(self._folders):
            self._files.sync_folder(folder)

    def _write(self, data: memoryview) -> None:
        with self._step():
            done = 0
            while done < len(data):
                count = self._append(data[done:], self.offset + done)
                if count == 0:
                    raise OSError(errno.EIO, "nothing was written")
                done += count
            self.offset += done
            if self.offset - self._started >= START_SYNC_BYTES:
                self._files.start_sync(self._file, self._started, self.offset - self._started)
                self._started = self.offset

    def _append(self, data: memoryview, offset: int) -> int:
        """Write some bytes. Without room for them, that of all that was not synced is given back.

        What was announced has its room. For other bytes it is looked for, a part at a time.

        The database may be on the same disk, and has to write that this upload failed: otherwise nothing ever ends it.
        """
        try:
            if offset + len(data) > self._allocated:
                self._room.expect(len(data))
            return self._files.write(self._file, data, offset)
        except (OSError, StorageFull) as error:
            if isinstance(error, StorageFull) or error.errno in FULL:
                with suppress(OSError):
                    self._files.truncate(self._file, self._safe)
            raise

    def _sync(self) -> None:
        with self._step():
            self._files.sync(self._file)
            self._safe = self.offset
            if not self._named:
                self._files.sync_folder(self._folders[1])
                self._named = True

    def _finish(self) -> None:
        with self._step():
            if self._allocated > self.offset:
                self._files.truncate(self._file, self.offset)
            self._files.sync(self._file)
            self._files.rename(self._path, self._final_path)
            for folder in self._folders:
                self._files.sync_folder(folder)
            self._end(UploadEnded)

    @contextmanager
    def _step(self) -> Iterator[None]:
        """One step at a time. After one that failed there is no other: nobody knows what a failed sync has lost."""
        with self._lock:
            if self._ended is not None:
                raise self._ended
            try:
                yield
            except BaseException:
                self._end(StoreError)
                raise

    def _end(self, why: type[IngotError]) -> None:
        if self._ended is None:
            self._ended = why
            self._writers.remove(self)
            file, self._file = self._file, -1
            if file >= 0:
                self._files.close(file)
