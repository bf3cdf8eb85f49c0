"""An object on its way into a bucket through us: one PUT when it is small, parts otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ingot.blobs.errors import UploadIncomplete
from ingot.blobs.ports import ObjectPart
from ingot.kernel.errors import StoreError
from ingot.objects.s3_parts import PARTS_MAX, MultipartUploads


class BucketWriter:
    """Gathers a part while the one before is sent, so that memory holds two. An `ObjectWriter`."""

    def __init__(
        self,
        multiparts: MultipartUploads,
        key: str,
        *,
        part_bytes: int,
        put: Callable[[bytes], Awaitable[None]],
        join: Callable[[str, list[ObjectPart]], Awaitable[None]],
    ) -> None:
        self.offset = 0
        self._multipart_uploads = multiparts
        self._key = key
        self._part_bytes = part_bytes
        self._put = put
        self._join = join
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0
        self._multipart: str | None = None
        self._part_tasks: list[asyncio.Task[ObjectPart]] = []

    async def write(self, data: bytes) -> None:
        """Append bytes; what is more than a part is sent."""
        done = 0
        while done < len(data):
            if self._buffered_bytes == self._part_bytes:
                await self._send_part()
            part = data[done : done + self._part_bytes - self._buffered_bytes]
            self._buffer.append(part)
            self._buffered_bytes += len(part)
            done += len(part)
        self.offset += len(data)

    async def sync(self) -> None:
        """Does nothing: what is not finished is not gone on with."""

    async def finish(self) -> None:
        """Send the rest, and make the object."""
        if self._multipart is None:
            await self._put(self._take_buffer())
            return
        await self._send_part()
        try:
            await self._join(self._multipart, [await sent for sent in self._part_tasks])
        except UploadIncomplete as error:
            raise StoreError("What was sent of this object is not there any more.") from error

    async def abort(self) -> None:
        """Stop sending. Deleting the place takes away what was sent."""
        for sending in self._part_tasks:
            sending.cancel()
        await asyncio.gather(*self._part_tasks, return_exceptions=True)
        self._buffer.clear()

    def _take_buffer(self) -> bytes:
        body = b"".join(self._buffer)
        self._buffer.clear()
        self._buffered_bytes = 0
        return body

    async def _send_part(self) -> None:
        """Begin to send what is gathered, when the part before is there."""
        if len(self._part_tasks) == PARTS_MAX:
            raise StoreError(
                f"{self.offset} bytes without an announced size are as many as go to the object store.",
                hint="Announce the size, or begin an upload.",
            )
        if self._multipart is None:
            self._multipart = await self._multipart_uploads.begin(self._key)
        if self._part_tasks:
            await self._part_tasks[-1]
        put = self._multipart_uploads.put(self._key, self._multipart, len(self._part_tasks) + 1, self._take_buffer())
        self._part_tasks.append(asyncio.create_task(put))
