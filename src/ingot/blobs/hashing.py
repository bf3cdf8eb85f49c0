"""Digests and part checksums: computing them while bytes arrive, and verifying bytes that are read."""

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

EVENT_LOOP_BYTES_MAX: Final = 32 * 1024  # Hashing this many bytes takes about as long as a switch to a thread.


class Hasher:
    """A hash of arriving bytes: the digests and part checksums of a blob. Used by one task at a time."""

    def __init__(self) -> None:
        self.size = 0
        self._blake3 = blake3.blake3()
        self._sha256 = hashlib.sha256()
        self._part_hash = xxhash.xxh3_128()
        self._part_checksums = bytearray()

    async def update(self, data: bytes | memoryview) -> None:
        """Hash more bytes. Large pieces use two threads, because SHA-256 takes twice as long as the rest together."""
        if len(data) <= EVENT_LOOP_BYTES_MAX:
            self.update_sync(data)
        else:
            await asyncio.gather(
                asyncio.to_thread(self._sha256.update, data), asyncio.to_thread(self._update_blake3_and_checksums, data)
            )

    def update_sync(self, data: bytes | memoryview) -> None:
        """Hash more bytes in the calling thread."""
        self._sha256.update(data)
        self._update_blake3_and_checksums(data)

    def _update_blake3_and_checksums(self, data: bytes | memoryview) -> None:
        self._blake3.update(data)
        view = memoryview(data)
        while view:
            missing = PART_BYTES - self.size % PART_BYTES
            piece = view[:missing]
            self._part_hash.update(piece)
            self.size += len(piece)
            if self.size % PART_BYTES == 0:
                self._part_checksums += self._part_hash.digest()
                self._part_hash.reset()
            view = view[missing:]

    @property
    def blob_id(self) -> str:
        """The BLAKE3 of all bytes so far, in hexadecimal."""
        return self._blake3.hexdigest()

    @property
    def sha256(self) -> str:
        """The SHA-256 of all bytes so far, in hexadecimal."""
        return self._sha256.hexdigest()

    @property
    def part_checksums(self) -> bytes:
        """The XXH3-128 of each full part so far and of the bytes after the last one, concatenated."""
        last_checksum = self._part_hash.digest() if self.size % PART_BYTES else b""
        return bytes(self._part_checksums) + last_checksum

    def content(self, *, storage_key: str | None = None, inline: bytes | None = None) -> Content:
        """Describe all bytes so far, in the form in which an engine stores them."""
        return Content(
            id=self.blob_id,
            sha256=self.sha256,
            size=self.size,
            storage_key=storage_key,
            inline=inline,
            part_checksums=self.part_checksums,
        )


def inline_content(data: bytes) -> Content:
    """Describe a small blob that is stored in the database. `data` is all of it, and at most one part."""
    assert len(data) <= PART_BYTES, "inline content has a single part checksum"
    return Content(
        id=blake3.blake3(data).hexdigest(),
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        inline=data,
        part_checksums=xxhash.xxh3_128_digest(data) if data else b"",
    )


def verify_part(part_number: int, data: bytes | memoryview, part_checksums: bytes) -> None:
    """Compare a part of a blob, counted from 0, with its checksum. Raises `BlobDamaged`."""
    start = part_number * CHECKSUM_BYTES
    if xxhash.xxh3_128_digest(data) != part_checksums[start : start + CHECKSUM_BYTES]:
        raise BlobDamaged(f"Part {part_number} of this blob does not match its checksum.")


async def read_verified(
    store: ObjectStore, content: Content, start: int, end: int
) -> AsyncGenerator[bytes | memoryview, None]:
    """Yield the bytes of a stored blob from `start` up to `end`. Each part is verified before any of it is yielded.

    Raises `BlobDamaged`. The first and the last part are read completely, because a checksum covers a complete part.
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
                raise BlobDamaged("A part of this blob has the wrong length.")
            verify_part(offset // PART_BYTES, part, content.part_checksums)
            yield part[max(0, start - offset) : end - offset]
            offset += len(part)
    if offset != stop:
        raise BlobDamaged("The end of this blob is missing.")


async def hash_object(store: ObjectStore, storage_key: str, size: int) -> Content:
    """Read an object once, part by part, and return its digests. Raises `BlobDamaged` when it is shorter than `size`.

    With a size of 0 nothing is read: an empty upload may have no object.
    """
    hasher = Hasher()
    if size:
        async with aclosing(store.read(storage_key, 0, size)) as parts:
            async for part in parts:
                await hasher.update(part)
    return hasher.content(storage_key=storage_key)
