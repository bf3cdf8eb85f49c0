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
from ingot.objects.free_space import FreeSpace
from ingot.objects.layout import Layout
from ingot.objects.syscalls import DISK_FULL_ERRNOS, Syscalls, to_store_error

START_SYNC_BYTES: Final = 4 * 1024 * 1024

T = TypeVar("T")


async def run_in_thread(pool: ThreadPoolExecutor, call: Callable[[], T]) -> T:
    """Do something in a thread; what the system says comes out as an error of ours."""
    try:
        waiting = asyncio.get_running_loop().run_in_executor(pool, call)
    except RuntimeError:
        raise StoreError("The blob folder is closed.") from None
    try:
        return await waiting
    except OSError as error:
        raise to_store_error(error) from error


class ActiveWriters:
    """Who writes which place: nobody but the one that came last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_storage_key: dict[str, LocalWriter] = {}

    def add(self, writer: LocalWriter) -> LocalWriter | None:
        """This one came last; answers the one before, which has to be shut out."""
        with self._lock:
            before = self._by_storage_key.get(writer.storage_key)
            self._by_storage_key[writer.storage_key] = writer
            return before

    def remove(self, writer: LocalWriter) -> None:
        """It writes no more."""
        with self._lock:
            if self._by_storage_key.get(writer.storage_key) is writer:
                del self._by_storage_key[writer.storage_key]

    def close_writer(self, storage_key: str) -> None:
        """Nobody writes this place any more when this returns."""
        with self._lock:
            writer = self._by_storage_key.get(storage_key)
        if writer is not None:
            writer.close(UploadEnded)

    def close_all(self) -> None:
        """Nobody writes anything any more when this returns."""
        with self._lock:
            writers = [*self._by_storage_key.values()]
        for writer in writers:
            writer.close(StoreError)


class LocalWriter:
    """An object on its way in. After an error, or when another goes on with it, it only raises.

    Each step runs in a thread and holds the lock. A caller that is canceled leaves its step running; whoever comes
    next, to close the file or to go on with it, waits for the end of that.
    """

    def __init__(
        self,
        storage_key: str,
        layout: Layout,
        files: Syscalls,
        room: FreeSpace,
        writers: ActiveWriters,
        pool: ThreadPoolExecutor,
    ) -> None:
        self.offset = 0
        self.storage_key = storage_key
        self._path = layout.upload_path(storage_key)
        self._final_path = layout.object_path(storage_key)
        self._folders = (layout.shard_folder(storage_key), layout.uploads_folder)
        self._syscalls = files
        self._free_space = room
        self._writers = writers
        self._pool = pool
        self._file = -1
        self._allocated = 0
        self._sync_started_offset = 0  # The disk was asked to write what is before this offset,
        self._synced_offset = 0  # and this much was synced: somebody may count on it.
        self._name_is_durable = False  # Its name below `uploads/` is durable.
        self._lock = threading.Lock()
        self._end_error: type[IngotError] | None = None

    async def begin(self, size: int | None) -> None:
        """Make the file, and take the room for it when its size is known."""
        await run_in_thread(self._pool, partial(self._begin, size))

    async def resume(self, offset: int) -> None:
        """Go on behind so many bytes; who wrote before is shut out."""
        await run_in_thread(self._pool, partial(self._resume, offset))

    async def write(self, data: bytes | memoryview) -> None:
        """Append bytes. Raises `StorageFull` or `StoreError`. Pieces of `PART_BYTES` cost the least."""
        await run_in_thread(self._pool, partial(self._write, memoryview(data)))

    async def sync(self) -> None:
        """What was written so far survives power loss when this returns."""
        await run_in_thread(self._pool, self._sync)

    async def finish(self) -> None:
        """The object is there, whole and durable, when this returns."""
        await run_in_thread(self._pool, self._finish)

    async def abort(self) -> None:
        """Stop. What was written stays, for the trash or for who resumes it."""
        await asyncio.shield(run_in_thread(self._pool, partial(self.close, UploadEnded)))

    def close(self, why: type[IngotError]) -> None:
        """Wait for the end of the step that is under way, and let no other follow."""
        with self._lock:
            self._close(why)

    # -- steps, each in a thread ----------------------------------------------------------------------------

    def _begin(self, size: int | None) -> None:
        with self._step():
            if self._syscalls.exists(self._final_path):
                raise StoreError("A place is written once, and there is an object at this one.")
            self._free_space.check(size or 0)
            self._file = self._syscalls.create(self._path)
            self._writers.add(self)
            if size:
                try:
                    self._syscalls.allocate(self._file, size)
                    self._free_space.check(0)  # Others that began at the same time have taken theirs too.
                except (OSError, StorageFull):
                    self._syscalls.unlink(self._path)
                    raise
                self._allocated = size

    def _resume(self, offset: int) -> None:
        with self._step():
            before = self._writers.add(self)
            if before is not None:
                before.close(UploadTaken)
            if self._syscalls.exists(self._final_path):
                self._undo_finish()
            if offset == 0 and not self._syscalls.exists(self._path):
                self._file = self._syscalls.create(self._path)  # Its name was not synced, and power was lost.
                return
            self._file = self._syscalls.open(self._path, writing=True)
            if self._syscalls.size(self._file) < offset:
                raise StoreError(f"Fewer than {offset} bytes of this upload are there.")
            # What is behind was not synced, or is room that was taken: neither belongs to what comes.
            self._syscalls.truncate(self._file, offset)
            self.offset = self._sync_started_offset = self._synced_offset = offset
            self._name_is_durable = offset > 0

    def _undo_finish(self) -> None:
        """It was finished, and then power was lost, or the process: nothing names it, so it is an upload still."""
        if self._syscalls.exists(self._path):  # The rename was made durable by half: both names are one file.
            self._syscalls.unlink(self._final_path)
        else:
            self._syscalls.rename(self._final_path, self._path)
        # Before it changes, it is surely not at its final name any more.
        for folder in reversed(self._folders):
            self._syscalls.sync_folder(folder)

    def _write(self, data: memoryview) -> None:
        with self._step():
            done = 0
            while done < len(data):
                count = self._append(data[done:], self.offset + done)
                if count == 0:
                    raise OSError(errno.EIO, "nothing was written")
                done += count
            self.offset += done
            if self.offset - self._sync_started_offset >= START_SYNC_BYTES:
                self._syscalls.start_sync(
                    self._file, self._sync_started_offset, self.offset - self._sync_started_offset
                )
                self._sync_started_offset = self.offset

    def _append(self, data: memoryview, offset: int) -> int:
        """Write some bytes. Without room for them, that of all that was not synced is given back.

        What was announced has its room. For other bytes it is looked for, a part at a time.

        The database may be on the same disk, and has to write that this upload failed: otherwise nothing ever ends it.
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
        """One step at a time. After one that failed there is no other: nobody knows what a failed sync has lost."""
        with self._lock:
            if self._end_error is not None:
                raise self._end_error
            try:
                yield
            except BaseException:
                self._close(StoreError)
                raise

    def _close(self, why: type[IngotError]) -> None:
        if self._end_error is None:
            self._end_error = why
            self._writers.remove(self)
            file, self._file = self._file, -1
            if file >= 0:
                self._syscalls.close(file)
