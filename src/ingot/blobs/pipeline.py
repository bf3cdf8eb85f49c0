"""Bytes on their way in: hashed and stored while the next ones arrive."""

from __future__ import annotations

import asyncio
from types import TracebackType

from ingot.blobs.hashing import Hasher
from ingot.blobs.model import PART_BYTES
from ingot.blobs.ports import ObjectWriter


class WritePipeline:
    """Takes the bytes of an object as they come. Used by one task at a time, in an `async with`.

    Small pieces are gathered, since each step costs a hop to a thread. One part is hashed and written at a time while
    the next is gathered: whoever sends faster than that waits in `take`. Memory holds two parts. After the block
    nothing is under way. Without a hasher they are only stored.
    """

    def __init__(self, writer: ObjectWriter, hasher: Hasher | None = None) -> None:
        self.received_bytes = 0
        self._writer = writer
        self._hasher = hasher
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0
        self._pending_write: asyncio.Task[None] | None = None

    async def write(self, data: bytes) -> None:
        """Take more bytes. Raises what became of those before: `StorageFull` or `StoreError`."""
        self.received_bytes += len(data)
        self._buffered_bytes += len(data)
        self._buffer.append(data)
        if self._buffered_bytes >= PART_BYTES:
            await self._start_write()

    async def flush(self) -> None:
        """All that was taken is hashed and written when this returns. Raises `StorageFull` or `StoreError`."""
        if self._buffered_bytes:
            await self._start_write()
        await self._wait_for_write()

    async def __aenter__(self) -> WritePipeline:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._pending_write = self._pending_write, None
        if task is not None:
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # Whoever leaves without `drain` does not want to know.

    async def _start_write(self) -> None:
        await self._wait_for_write()
        data = self._buffer[0] if len(self._buffer) == 1 else b"".join(self._buffer)
        self._buffer, self._buffered_bytes = [], 0
        self._pending_write = asyncio.create_task(self._hash_and_write(data))

    async def _wait_for_write(self) -> None:
        if self._pending_write is not None:
            await self._pending_write
            self._pending_write = None

    async def _hash_and_write(self, data: bytes) -> None:
        hashing = None if self._hasher is None else asyncio.create_task(self._hasher.update(data))
        try:
            await self._writer.write(data)
        finally:
            if hashing is not None:
                await hashing
