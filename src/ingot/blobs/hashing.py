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
from ingot.blobs.model import CHECKSUM_BYTES, PART_BYTES, Content
from ingot.blobs.ports import ObjectStore

EVENT_LOOP_BYTES_MAX: Final = 32 * 1024  # A hop to a thread takes about as long as to hash this.


class Hasher:
    """Takes the bytes of a blob as they come, and answers what they are. Used by one task at a time."""

    def __init__(self) -> None:
        self.size = 0
        self._blake3 = blake3.blake3()
        self._sha256 = hashlib.sha256()
        self._part_hash = xxhash.xxh3_128()
        self._part_checksums = bytearray()

    async def update(self, data: bytes | memoryview) -> None:
        """Take more bytes; many of them in two threads, since the SHA-256 takes twice as long as all else."""
        if len(data) <= EVENT_LOOP_BYTES_MAX:
            self.update_sync(data)
        else:
            await asyncio.gather(
                asyncio.to_thread(self._sha256.update, data), asyncio.to_thread(self._update_part_checksums, data)
            )

    def update_sync(self, data: bytes | memoryview) -> None:
        """Take more bytes, here and now."""
        self._sha256.update(data)
        self._update_part_checksums(data)

    def _update_part_checksums(self, data: bytes | memoryview) -> None:
        self._blake3.update(data)
        view = memoryview(data)
        while view:
            room = PART_BYTES - self.size % PART_BYTES
            piece = view[:room]
            self._part_hash.update(piece)
            self.size += len(piece)
            if self.size % PART_BYTES == 0:
                self._part_checksums += self._part_hash.digest()
                self._part_hash.reset()
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
    def part_checksums(self) -> bytes:
        """The XXH3-128 of each `PART_BYTES` so far, and of the rest, one behind the other."""
        rest = self._part_hash.digest() if self.size % PART_BYTES else b""
        return bytes(self._part_checksums) + rest

    def content(self, *, storage_key: str | None = None, inline: bytes | None = None) -> Content:
        """All bytes so far as an engine keeps them."""
        return Content(
            id=self.blob_id,
            sha256=self.sha256,
            size=self.size,
            storage_key=storage_key,
            inline=inline,
            part_checksums=self.part_checksums,
        )


def inline_content(data: bytes) -> Content:
    """Bytes that are all here, and no more than a part, as an engine keeps them."""
    assert len(data) <= PART_BYTES, "one check covers them"
    return Content(
        id=blake3.blake3(data).hexdigest(),
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        inline=data,
        part_checksums=xxhash.xxh3_128_digest(data) if data else b"",
    )


def verify_part(part_number: int, data: bytes | memoryview, checks: bytes) -> None:
    """Compare a part of a blob, counted from 0, with its check. Raises `BlobDamaged`."""
    start = part_number * CHECKSUM_BYTES
    if xxhash.xxh3_128_digest(data) != checks[start : start + CHECKSUM_BYTES]:
        raise BlobDamaged(f"Part {part_number} of this blob is not what was stored.")


async def read_verified(
    store: ObjectStore, content: Content, start: int, end: int
) -> AsyncGenerator[bytes | memoryview, None]:
    """The bytes of a stored blob from `start` up to `end`, each part compared before any of it is given away.

    Raises `BlobDamaged`. Parts at both ends are read whole: a check covers all of a part.
    """
    assert content.storage_key is not None
    assert 0 <= start <= end <= content.size
    if start == end:
        return
    offset = start - start % PART_BYTES
    stop = min(content.size, end + -end % PART_BYTES)
    async with aclosing(store.read(content.storage_key, offset, stop)) as parts:
        async for part in parts:
            if len(part) != min(PART_BYTES, stop - offset):
                raise BlobDamaged("A part of this blob has not the length that it should have.")
            verify_part(offset // PART_BYTES, part, content.part_checksums)
            yield part[max(0, start - offset) : end - offset]
            offset += len(part)
    if offset != stop:
        raise BlobDamaged("The end of this blob is missing.")


async def hash_object(store: ObjectStore, storage_key: str, size: int) -> Content:
    """Read an object once, a part at a time, and answer what its bytes are. Raises `BlobDamaged` when it is shorter.

    Of no bytes there need be no object.
    """
    hasher = Hasher()
    if size:
        async with aclosing(store.read(storage_key, 0, size)) as parts:
            async for part in parts:
                await hasher.update(part)
    return hasher.content(storage_key=storage_key)
