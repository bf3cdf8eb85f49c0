"""Flipped bits and truncated files: a reader gets the right bytes or an error."""

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

DAMAGE_COUNT = 600
SIZES = [1, 2, 4096, 16 * 1024 + 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES + 4711]

Damage = Callable[[bytearray, random.Random], None]  # Damages the bytes of a file.


def flip_a_bit(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def flip_many_bits(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.randrange(2, 50)):
        data[chance.randrange(len(data))] ^= 1 + chance.randrange(255)


def truncate(data: bytearray, chance: random.Random) -> None:
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


def first_wrong(data: bytes, damaged: bytes) -> int:
    """Return the position of the first changed byte, or the number of bytes if none is."""
    low, high = 0, len(data)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if damaged[:middle] == data[:middle] else (low, middle - 1)
    return low


DAMAGES: list[Damage] = [flip_a_bit, flip_a_bit, flip_many_bits, truncate, truncate, lose_bytes, write_zeros, add_bytes]


class StoredObjects:
    """Objects in a folder, with the original bytes of each."""

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
        """Read a range. Return the bytes that were received, and whether the reader got an error."""
        received = bytearray()
        try:
            async for part in read_verified(self.store, content, start, end):
                received += part
        except BlobDamaged:
            return bytes(received), True
        return bytes(received), False


@pytest.fixture
async def stored(tmp_path: Path) -> AsyncIterator[StoredObjects]:
    """Objects of many sizes."""
    store = await LocalStore.open(tmp_path, clock=SystemClock())
    stored, chance = StoredObjects(tmp_path, store), random.Random(8)
    for size in SIZES:
        # Half of the bytes are zeros, as in many files.
        await stored.add(
            b"".join(chance.choice((bytes(512), chance.randbytes(512))) for _ in range(size // 512 + 1))[:size]
        )
    yield stored
    await store.close()


async def test_damaged_bytes_are_never_returned(stored: StoredObjects) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    damages_found = 0
    for _ in range(DAMAGE_COUNT):
        content, data = chance.choice(stored.objects)
        damaged = bytearray(data)
        chance.choice(DAMAGES)(damaged, chance)
        wrong = first_wrong(data, bytes(damaged))
        stored.path(content).write_bytes(damaged)
        for _ in range(3):
            start = chance.choice((0, chance.randrange(len(data))))
            end = chance.choice((len(data), chance.randrange(start, len(data) + 1)))
            received, is_damaged = await stored.read(content, start, end)
            assert data[start:end].startswith(received), f"wrong bytes were read, seed {seed}"
            assert is_damaged or len(received) == end - start, f"bytes are missing without an error, seed {seed}"
            covers = start < end and start // PART_BYTES <= wrong // PART_BYTES and wrong < end
            assert is_damaged or not covers, (
                f"damage at {wrong} was not reported to a reader of {start} to {end}, seed {seed}"
            )
            damages_found += is_damaged
        assert await is_whole(stored.store, content) is (wrong == len(data))
        stored.path(content).write_bytes(data)
    assert damages_found > DAMAGE_COUNT
    for content, data in stored.objects:
        assert await stored.read(content, 0, len(data)) == (data, False)


async def is_whole(store: LocalStore, content: Content) -> bool:
    """Whether a scrub finds no damage."""
    assert content.storage_key is not None
    try:
        return await hash_object(store, content.storage_key, content.size) == content
    except BlobDamaged:
        return False


async def test_bytes_of_another_object_are_damage(stored: StoredObjects) -> None:
    (first, data), (second, other) = stored.objects[-1], stored.objects[-2]
    stored.path(first).write_bytes(other)
    stored.path(second).write_bytes(data)
    for content in (first, second):
        assert await stored.read(content, 0, content.size) == (b"", True)


async def test_parts_in_the_wrong_order_are_damage(stored: StoredObjects) -> None:
    content, data = stored.objects[-1]
    stored.path(content).write_bytes(data[PART_BYTES : 2 * PART_BYTES] + data[:PART_BYTES] + data[2 * PART_BYTES :])
    assert await stored.read(content, 0, content.size) == (b"", True)
    assert await stored.read(content, 2 * PART_BYTES + 1, content.size) == (data[2 * PART_BYTES + 1 :], False)


async def test_a_missing_file_is_damage(stored: StoredObjects) -> None:
    for content, _ in stored.objects:
        stored.path(content).unlink()
        assert await stored.read(content, 0, content.size) == (b"", True)
        assert not await is_whole(stored.store, content)


async def test_a_file_that_is_truncated_during_a_read_is_damage(stored: StoredObjects) -> None:
    content, data = stored.objects[-1]
    parts = read_verified(stored.store, content, 0, content.size)
    assert await anext(parts) == data[:PART_BYTES]
    stored.path(content).write_bytes(data[: PART_BYTES + 10])
    with pytest.raises(BlobDamaged):
        await anext(parts)


async def test_an_empty_object_is_whole_whatever_its_file_contains(stored: StoredObjects) -> None:
    await stored.add(b"")
    content, _ = stored.objects[-1]
    for data in (b"", b"more"):
        stored.path(content).write_bytes(data)
        assert await stored.read(content, 0, 0) == (b"", False)
        assert await is_whole(stored.store, content)
