"""Digests of streamed bytes, and part checksums."""

from __future__ import annotations

import hashlib
import random

import blake3
import pytest
import xxhash

from ingot.blobs.errors import BlobDamaged
from ingot.blobs.hashing import Hasher, inline_content, verify_part
from ingot.blobs.model import CHECKSUM_BYTES, PART_BYTES

DATA = random.Random(8).randbytes(3 * PART_BYTES + 4711)


def parts(data: bytes) -> list[bytes]:
    """The parts of the data that have one checksum each."""
    return [data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)]


@pytest.mark.parametrize("size", [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, len(DATA)])
@pytest.mark.parametrize("seed", range(4))
async def test_digests_do_not_depend_on_the_size_of_the_pieces(size: int, seed: int) -> None:
    rng = random.Random(seed)
    data, hasher, start = DATA[:size], Hasher(), 0
    while start < size:
        piece = rng.choice((1, 1000, 40_000, PART_BYTES, 2 * PART_BYTES + 1)) if seed else size
        await hasher.update(data[start : min(size, start + piece)])
        start += piece
    assert hasher.blob_id == blake3.blake3(data).hexdigest()
    assert hasher.sha256 == hashlib.sha256(data).hexdigest()
    assert hasher.size == size
    assert hasher.part_checksums == b"".join(xxhash.xxh3_128_digest(part) for part in parts(data))


async def test_digests_can_be_read_between_updates() -> None:
    hasher = Hasher()
    for end in (10, PART_BYTES, PART_BYTES + 7, len(DATA)):
        await hasher.update(DATA[hasher.size : end])
        single = Hasher()
        single.update_sync(DATA[:end])
        assert hasher.content() == single.content()


@pytest.mark.parametrize("size", [0, 1, 1024, PART_BYTES])
def test_inline_content_has_the_digests_of_streamed_content(size: int) -> None:
    hasher, data = Hasher(), DATA[:size]
    hasher.update_sync(data)
    assert inline_content(data) == hasher.content(inline=data)


def test_the_digests_of_empty_content_are_the_published_ones() -> None:
    content = Hasher().content()
    assert content.id == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    assert content.sha256 == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert (content.size, content.part_checksums) == (0, b"")


def test_a_part_with_wrong_bytes_is_damaged() -> None:
    hasher = Hasher()
    hasher.update_sync(DATA)
    for number, part in enumerate(parts(DATA)):
        verify_part(number, part, hasher.part_checksums)
        for wrong in (part[:-1], part + b"\0", bytes([part[0] ^ 1]) + part[1:], b""):
            with pytest.raises(BlobDamaged):
                verify_part(number, wrong, hasher.part_checksums)
        with pytest.raises(BlobDamaged):
            verify_part(number + 1, part, hasher.part_checksums)


def test_a_part_without_a_checksum_is_damaged() -> None:
    for data in (b"", b"bytes"):
        with pytest.raises(BlobDamaged):
            verify_part(0, data, b"")
        with pytest.raises(BlobDamaged):
            verify_part(1, data, bytes(CHECKSUM_BYTES))
