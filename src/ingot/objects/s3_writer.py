"""An object on its way into a bucket through us: one PUT when it is small, parts otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ingot.blobs.errors import UploadIncomplete
from ingot.blobs.ports import Part
from ingot.kernel.errors import StoreError
from ingot.objects.s3_parts import PARTS_MAX, Multiparts


class BucketWriter:
    """Gathers a part while the one before is sent, so that memory holds two. An `ObjectWriter`."""

    def __init__(
        self,
        multiparts: Multiparts,
        key: str,
        *,
        part_bytes: int,
        put: Callable[[bytes], Awaitable[None]],
        join: Callable[[str, list[Part]], Awaitable[None]],
    ) -> None:
        self.offset = 0
        self._multiparts = multiparts
        self._key = key
        self._part_bytes = part_bytes
        self._put = put
        self._join = join
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._multipart: str | None = None
        self._sending: list[asyncio.Task[Part]] = []

    async def write(self, data: bytes) -> None:
        """Append bytes; what is more than a part is sent."""
        done = 0
        while done < len(data):
            if self._gathered_bytes == self._part_bytes:
                await self._send()
            part = data[done : done + self._part_bytes - self._gathered_bytes]
            self._gathered.append(part)
            self._gathered_bytes += len(part)
            done += len(part)
        self.offset += len(data)

    async def sync(self) -> None:
        """Does nothing: what is not finished is not gone on with."""

    async def finish(self) -> None:
        """Send the rest, and make the object."""
        if self._multipart is None:
            await self._put(self._taken())
            return
        await self._send()
        try:
            await self._join(self._multipart, [await sent for sent in self._sending])
        except UploadIncomplete as error:
            raise StoreError("What was sent of this object is not there any more.") from error

    async def abort(self) -> None:
        """Stop sending. Deleting the place takes away what was sent."""
        for sending in self._sending:
            sending.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        self._gathered.clear()

    def _taken(self) -> bytes:
        body = b"".join(self._gathered)
        self._gathered.clear()
        self._gathered_bytes = 0
        return body

    async def _send(self) -> None:
        """Begin to send what is gathered, when the part before is there."""
        if len(self._sending) == PARTS_MAX:
            raise StoreError(
                f"{self.offset} bytes without an announced size are as many as go to the object store.",
                hint="Announce the size, or begin an upload.",
            )
        if self._multipart is None:
            self._multipart = await self._multiparts.begin(self._key)
        if self._sending:
            await self._sending[-1]
        put = self._multiparts.put(self._key, self._multipart, len(self._sending) + 1, self._taken())
        self._sending.append(asyncio.create_task(put))
