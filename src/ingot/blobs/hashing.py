"""What a blob is called and how it is known to be whole: digests of bytes as they come, and checks of what is read."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import blake3
import xxhash

from ingot.blobs.errors import BlobDamaged
from ingot.blobs.model import CHECK_BYTES, PART_BYTES, Content
from ingot.blobs.ports import ObjectStore

ON_THE_LOOP_BYTES_MAX: Final = 32 * 1024  # A hop to a thread takes about as long as to hash this.


class Hasher:
    """Takes the bytes of a blob as they come, and answers what they are. Used by one task at a time."""

    def __init__(self) -> None:
        self.size = 0
        self._blake3 = blake3.blake3()
        self._sha256 = hashlib.sha256()
        self._part = xxhash.xxh3_128()
        self._checks = bytearray()

    async def update(self, data: bytes | memoryview) -> None:
        """Take more bytes; many of them in two threads, since the SHA-256 takes twice as long as all else."""
        if len(data) <= ON_THE_LOOP_BYTES_MAX:
            self.take(data)
        else:
            await asyncio.gather(asyncio.to_thread(self._sha256.update, data), asyncio.to_thread(self._take_rest, data))

    def take(self, data: bytes | memoryview) -> None:
        """Take more bytes, here and now."""
        self._sha256.update(data)
        self._take_rest(data)

    def _take_rest(self, data: bytes | memoryview) -> None:
        self._blake3.update(data)
        view = memoryview(data)
        while view:
            room = PART_BYTES - self.size % PART_BYTES
            piece = view[:room]
            self._part.update(piece)
            self.size += len(piece)
            if self.size % PART_BYTES == 0:
                self._checks += self._part.digest()
                self._part.reset()
            view = view[room:]

    @property
    def blob_id(self) -> str:
        """The BLAKE3 of all bytes so far, in hex."""
        return self._blake3.hexdigest()

    @property
    def sha256(self) -> str:
        """The SHA-256 of all bytes so far, in hex."""
        return self._sha256.hexdigest()

    @property
    def checks(self) -> bytes:
        """The XXH3-128 of each `PART_BYTES` so far, and of the rest, one behind the other."""
        rest = self._part.digest() if self.size % PART_BYTES else b""
        return bytes(self._checks) + rest

    def content(self, *, place: str | None = None, inline: bytes | None = None) -> Content:
        """All bytes so far as an engine keeps them."""
        return Content(
            id=self.blob_id, sha256=self.sha256, size=self.size, place=place, inline=inline, checks=self.checks
        )


def content_of(data: bytes) -> Content:
    """Bytes that are all here, and no more than a part, as an engine keeps them."""
    assert len(data) <= PART_BYTES, "one check covers them"
    return Content(
        id=blake3.blake3(data).hexdigest(),
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        inline=data,
        checks=xxhash.xxh3_128_digest(data) if data else b"",
    )


def verify(part_number: int, data: bytes | memoryview, checks: bytes) -> None:
    """Compare a part of a blob, counted from 0, with its check. Raises `BlobDamaged`."""
    start = part_number * CHECK_BYTES
    if xxhash.xxh3_128_digest(data) != checks[start : start + CHECK_BYTES]:
        raise BlobDamaged(f"Part {part_number} of this blob is not what was stored.")


async def read_verified(
    store: ObjectStore, content: Content, start: int, end: int
) -> AsyncGenerator[bytes | memoryview, None]:
    """The bytes of a stored blob from `start` up to `end`, each part compared before any of it is given away.

    Raises `BlobDamaged`. Parts at both ends are read whole: a check covers all of a part.
    """
    assert content.place is not None
    assert 0 <= start <= end <= content.size
    if start == end:
        return
    offset = start - start % PART_BYTES
    stop = min(content.size, end + -end % PART_BYTES)
    async with aclosing(store.read(content.place, offset, stop)) as parts:
        async for part in parts:
            if len(part) != min(PART_BYTES, stop - offset):
                raise BlobDamaged("A part of this blob has not the length that it should have.")
            verify(offset // PART_BYTES, part, content.checks)
            yield part[max(0, start - offset) : end - offset]
            offset += len(part)
    if offset != stop:
        raise BlobDamaged("The end of this blob is missing.")


async def rehash(store: ObjectStore, place: str, size: int) -> Content:
    """Read an object once, a part at a time, and answer what its bytes are. Raises `BlobDamaged` when it is shorter.

    Of no bytes there need be no object.
    """
    hasher = Hasher()
    if size:
        async with aclosing(store.read(place, 0, size)) as parts:
            async for part in parts:
                await hasher.update(part)
    return hasher.content(place=place)
