"""Bytes on their way in: hashed and stored while the next ones arrive."""

from __future__ import annotations

import asyncio
from types import TracebackType

from ingot.blobs.hashing import Hasher
from ingot.blobs.model import PART_BYTES
from ingot.blobs.ports import ObjectWriter


class Pipeline:
    """Takes the bytes of an object as they come. Used by one task at a time, in an `async with`.

    Small pieces are gathered, since each step costs a hop to a thread. One part is hashed and written at a time while
    the next is gathered: whoever sends faster than that waits in `take`. Memory holds two parts. After the block
    nothing is under way. Without a hasher they are only stored.
    """

    def __init__(self, writer: ObjectWriter, hasher: Hasher | None = None) -> None:
        self.received = 0
        self._writer = writer
        self._hasher = hasher
        self._pieces: list[bytes] = []
        self._gathered = 0
        self._under_way: asyncio.Task[None] | None = None

    async def take(self, data: bytes) -> None:
        """Take more bytes. Raises what became of those before: `StorageFull` or `StoreError`."""
        self.received += len(data)
        self._gathered += len(data)
        self._pieces.append(data)
        if self._gathered >= PART_BYTES:
            await self._hand_on()

    async def drain(self) -> None:
        """All that was taken is hashed and written when this returns. Raises `StorageFull` or `StoreError`."""
        if self._gathered:
            await self._hand_on()
        await self._wait()

    async def __aenter__(self) -> Pipeline:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._under_way = self._under_way, None
        if task is not None:
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # Whoever leaves without `drain` does not want to know.

    async def _hand_on(self) -> None:
        await self._wait()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces, self._gathered = [], 0
        self._under_way = asyncio.create_task(self._work(data))

    async def _wait(self) -> None:
        if self._under_way is not None:
            await self._under_way
            self._under_way = None

    async def _work(self, data: bytes) -> None:
        hashing = None if self._hasher is None else asyncio.create_task(self._hasher.update(data))
        try:
            await self._writer.write(data)
        finally:
            if hashing is not None:
                await hashing
