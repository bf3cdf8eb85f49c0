"""A pipeline that hashes and writes bytes while the next ones arrive."""

from __future__ import annotations

import asyncio
from types import TracebackType

from ingot.blobs.hashing import Hasher
from ingot.blobs.model import PART_BYTES
from ingot.blobs.ports import ObjectWriter


class WritePipeline:
    """A writer that hashes and writes the bytes of an object as they arrive.

    Small pieces are collected into parts, because each write costs a switch to a thread. One part is hashed and written
    while the next one is collected; a faster sender waits in `write`. At most two parts are in memory. When the block
    ends, no write is running. Without a hasher, the bytes are only written. Used by one task at a time, in an
    `async with`.
    """

    def __init__(self, writer: ObjectWriter, hasher: Hasher | None = None) -> None:
        self.received_bytes = 0
        self._writer = writer
        self._hasher = hasher
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0
        self._pending_write: asyncio.Task[None] | None = None

    async def write(self, data: bytes) -> None:
        """Add bytes. Raises `StorageFull` or `StoreError` if an earlier write failed."""
        self.received_bytes += len(data)
        self._buffered_bytes += len(data)
        self._buffer.append(data)
        if self._buffered_bytes >= PART_BYTES:
            await self._start_write()

    async def flush(self) -> None:
        """Wait until all bytes are hashed and written. Raises `StorageFull` or `StoreError`."""
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
                task.exception()  # Mark the error as retrieved: a caller that has not flushed does not need it.

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
