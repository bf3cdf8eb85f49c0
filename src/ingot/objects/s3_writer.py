"""The writer of an object that passes through the server into a bucket: one PUT if it is small, otherwise parts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ingot.blobs.errors import UploadIncomplete
from ingot.blobs.ports import ObjectPart
from ingot.kernel.errors import StoreError
from ingot.objects.s3_parts import PARTS_MAX, MultipartUploads


class BucketWriter:
    """An `ObjectWriter` that collects one part while it sends the previous one. At most two parts are in memory."""

    def __init__(
        self,
        multipart_uploads: MultipartUploads,
        key: str,
        *,
        part_bytes: int,
        put: Callable[[bytes], Awaitable[None]],
        join: Callable[[str, list[ObjectPart]], Awaitable[None]],
    ) -> None:
        self.offset = 0
        self._multipart_uploads = multipart_uploads
        self._key = key
        self._part_bytes = part_bytes
        self._put = put
        self._join = join
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0
        self._multipart: str | None = None
        self._part_tasks: list[asyncio.Task[ObjectPart]] = []

    async def write(self, data: bytes) -> None:
        """Append bytes. Sends a part when the next one begins."""
        buffered = 0
        while buffered < len(data):
            if self._buffered_bytes == self._part_bytes:
                await self._send_part()
            piece = data[buffered : buffered + self._part_bytes - self._buffered_bytes]
            self._buffer.append(piece)
            self._buffered_bytes += len(piece)
            buffered += len(piece)
        self.offset += len(data)

    async def sync(self) -> None:
        """Do nothing: an unfinished object cannot be resumed."""

    async def finish(self) -> None:
        """Send the last part and create the object."""
        if self._multipart is None:
            await self._put(self._take_buffer())
            return
        await self._send_part()
        try:
            await self._join(self._multipart, [await task for task in self._part_tasks])
        except UploadIncomplete as error:
            raise StoreError("The parts of this object no longer exist in the object store.") from error

    async def abort(self) -> None:
        """Stop sending. Parts that were sent stay until the object is deleted."""
        for task in self._part_tasks:
            task.cancel()
        await asyncio.gather(*self._part_tasks, return_exceptions=True)
        self._buffer.clear()

    def _take_buffer(self) -> bytes:
        body = b"".join(self._buffer)
        self._buffer.clear()
        self._buffered_bytes = 0
        return body

    async def _send_part(self) -> None:
        """Start to send the collected part, after the previous part has been sent."""
        if len(self._part_tasks) == PARTS_MAX:
            raise StoreError(
                f"An object of unknown size can have at most {self.offset} bytes.",
                hint="Announce the size, or begin an upload.",
            )
        if self._multipart is None:
            self._multipart = await self._multipart_uploads.begin(self._key)
        if self._part_tasks:
            await self._part_tasks[-1]
        sending = self._multipart_uploads.put(
            self._key, self._multipart, len(self._part_tasks) + 1, self._take_buffer()
        )
        self._part_tasks.append(asyncio.create_task(sending))
