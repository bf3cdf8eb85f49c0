"""Bits that flip, files that are cut: whoever reads gets the right bytes or is told that they are damaged."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from ingot.blobs.errors import BlobDamaged
from ingot.blobs.hashing import Hasher, hash_object, read_verified
from ingot.blobs.model import PART_BYTES, Content
from ingot.kernel.clock import SystemClock
from ingot.objects.local import LocalStore
from tests.conformance.object_stores import put

DAMAGES = 600
SIZES = [1, 2, 4096, 16 * 1024 + 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES + 4711]

Harm = Callable[[bytearray, random.Random], None]  # Damages the bytes of a file.


def flip_a_bit(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def flip_many_bits(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.randrange(2, 50)):
        data[chance.randrange(len(data))] ^= 1 + chance.randrange(255)


def cut(data: bytearray, chance: random.Random) -> None:
    del data[
        chance.choice((0, len(data) - 1, chance.randrange(len(data)), (len(data) - 1) // PART_BYTES * PART_BYTES)) :
    ]


def lose_bytes(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    del data[at : at + chance.choice((1, 512, 4096, PART_BYTES))]


def write_zeros(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    end = min(len(data), at + chance.choice((512, 4096, PART_BYTES)))
    data[at:end] = bytes(end - at)


def add_bytes(data: bytearray, chance: random.Random) -> None:
    data += chance.randbytes(chance.choice((1, 512, PART_BYTES)))


def first_wrong(data: bytes, harmed: bytes) -> int:
    """The first byte that is not as it was; the number of bytes when all are."""
    low, high = 0, len(data)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if harmed[:middle] == data[:middle] else (low, middle - 1)
    return low


HARMS: list[Harm] = [flip_a_bit, flip_a_bit, flip_many_bits, cut, cut, lose_bytes, write_zeros, add_bytes]


class Shelf:
    """Objects in a folder, with the right bytes of each."""

    def __init__(self, folder: Path, store: LocalStore) -> None:
        self.store = store
        self.objects: list[tuple[Content, bytes]] = []
        self._folder = folder / "blobs"

    async def add(self, data: bytes) -> None:
        """Store an object."""
        hasher = Hasher()
        hasher.update_sync(data)
        self.objects.append((hasher.content(storage_key=await put(self.store, data)), data))

    def path(self, content: Content) -> Path:
        """The file of an object."""
        assert content.storage_key is not None
        return self._folder / content.storage_key[-2:] / content.storage_key

    async def read(self, content: Content, start: int, end: int) -> tuple[bytes, bool]:
        """What somebody gets who reads a range, and whether the reader was told that there is damage."""
        got = bytearray()
        try:
            async for part in read_verified(self.store, content, start, end):
                got += part
        except BlobDamaged:
            return bytes(got), True
        return bytes(got), False


@pytest.fixture
async def shelf(tmp_path: Path) -> AsyncIterator[Shelf]:
    """Objects of many sizes."""
    store = await LocalStore.open(tmp_path, clock=SystemClock())
    shelf, chance = Shelf(tmp_path, store), random.Random(8)
    for size in SIZES:
        # Half of the bytes are zeros, as in many files.
        await shelf.add(
            b"".join(chance.choice((bytes(512), chance.randbytes(512))) for _ in range(size // 512 + 1))[:size]
        )
    yield shelf
    await store.close()


async def test_damaged_bytes_are_never_given_away(shelf: Shelf) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    found = 0
    for _ in range(DAMAGES):
        content, data = chance.choice(shelf.objects)
        harmed = bytearray(data)
        chance.choice(HARMS)(harmed, chance)
        wrong = first_wrong(data, bytes(harmed))
        shelf.path(content).write_bytes(harmed)
        for _ in range(3):
            start = chance.choice((0, chance.randrange(len(data))))
            end = chance.choice((len(data), chance.randrange(start, len(data) + 1)))
            got, told = await shelf.read(content, start, end)
            assert data[start:end].startswith(got), f"wrong bytes were read, seed {seed}"
            assert told or len(got) == end - start, f"bytes are missing and nothing was said, seed {seed}"
            covers = start < end and start // PART_BYTES <= wrong // PART_BYTES and wrong < end
            assert told or not covers, f"damage at {wrong} was not told to who read {start} to {end}, seed {seed}"
            found += told
        assert await whole(shelf.store, content) is (wrong == len(data))
        shelf.path(content).write_bytes(data)
    assert found > DAMAGES
    for content, data in shelf.objects:
        assert await shelf.read(content, 0, len(data)) == (data, False)


async def whole(store: LocalStore, content: Content) -> bool:
    """What a scrub finds out."""
    assert content.storage_key is not None
    try:
        return await hash_object(store, content.storage_key, content.size) == content
    except BlobDamaged:
        return False


async def test_another_objects_bytes_are_damage(shelf: Shelf) -> None:
    (first, data), (second, other) = shelf.objects[-1], shelf.objects[-2]
    shelf.path(first).write_bytes(other)
    shelf.path(second).write_bytes(data)
    for content in (first, second):
        assert await shelf.read(content, 0, content.size) == (b"", True)


async def test_parts_in_another_order_are_damage(shelf: Shelf) -> None:
    content, data = shelf.objects[-1]
    shelf.path(content).write_bytes(data[PART_BYTES : 2 * PART_BYTES] + data[:PART_BYTES] + data[2 * PART_BYTES :])
    assert await shelf.read(content, 0, content.size) == (b"", True)
    assert await shelf.read(content, 2 * PART_BYTES + 1, content.size) == (data[2 * PART_BYTES + 1 :], False)


async def test_a_file_that_is_gone_is_damage(shelf: Shelf) -> None:
    for content, _ in shelf.objects:
        shelf.path(content).unlink()
        assert await shelf.read(content, 0, content.size) == (b"", True)
        assert not await whole(shelf.store, content)


async def test_a_file_that_is_cut_while_it_is_read_is_damage(shelf: Shelf) -> None:
    content, data = shelf.objects[-1]
    parts = read_verified(shelf.store, content, 0, content.size)
    assert await anext(parts) == data[:PART_BYTES]
    shelf.path(content).write_bytes(data[: PART_BYTES + 10])
    with pytest.raises(BlobDamaged):
        await anext(parts)


async def test_an_empty_object_is_right_whatever_is_in_its_file(shelf: Shelf) -> None:
    await shelf.add(b"")
    content, _ = shelf.objects[-1]
    for data in (b"", b"more"):
        shelf.path(content).write_bytes(data)
        assert await shelf.read(content, 0, 0) == (b"", False)
        assert await whole(shelf.store, content)
