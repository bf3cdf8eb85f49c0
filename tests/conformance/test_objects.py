"""What an object store promises: places written once, bytes that come back as they were, uploads that go on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path

import pytest

from ingot.blobs.errors import BlobDamaged
from ingot.blobs.hashing import Hasher, hash_object, read_verified
from ingot.blobs.model import CHECKSUM_BYTES, PART_BYTES, TrashedObject
from ingot.blobs.ports import ObjectStore, ObjectWriter
from ingot.kernel.errors import IngotError, StoreError
from tests.conformance.object_stores import STORES, put, read, skip_unless_it_resumes

SIZES = [0, 1, 16 * 1024 + 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES, 5 * PART_BYTES + 4711]


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    """Each store in turn."""
    async with STORES[request.param](tmp_path / "data") as store:
        yield store


def some_bytes(size: int) -> bytes:
    """Bytes that are not the same at any two offsets, for all that matters."""
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize("size", SIZES)
async def test_what_is_stored_comes_back_in_parts(store: ObjectStore, size: int) -> None:
    data = some_bytes(size)
    storage_key = await put(store, data)
    parts = [bytes(part) async for part in store.read(storage_key, 0, size)]
    assert parts == [data[start : start + PART_BYTES] for start in range(0, size, PART_BYTES)]


async def test_bytes_of_unknown_number_are_stored(store: ObjectStore) -> None:
    data = some_bytes(2 * PART_BYTES + 5)
    storage_key = store.new_storage_key()
    writer = await store.write(storage_key, size=None)
    for start in range(0, len(data), 300_001):
        assert writer.offset == start
        await writer.write(data[start : start + 300_001])
    await writer.finish()
    assert await read(store, storage_key, 0, len(data)) == data


async def test_fewer_bytes_than_were_announced_are_what_is_stored(store: ObjectStore) -> None:
    storage_key = store.new_storage_key()
    writer = await store.write(storage_key, size=3 * PART_BYTES)
    await writer.write(b"few")
    await writer.finish()
    assert await read(store, storage_key, 0, 3) == b"few"
    with pytest.raises(BlobDamaged):
        await read(store, storage_key, 0, 4)


async def test_a_range_begins_at_a_part_and_ends_anywhere(store: ObjectStore) -> None:
    data = some_bytes(3 * PART_BYTES + 9)
    storage_key = await put(store, data)
    for start, end in [
        (0, 1),
        (PART_BYTES, PART_BYTES + 1),
        (PART_BYTES, 3 * PART_BYTES + 9),
        (3 * PART_BYTES, 3 * PART_BYTES + 3),
    ]:
        assert await read(store, storage_key, start, end) == data[start:end]


async def test_places_are_never_used_twice(store: ObjectStore) -> None:
    storage_keys = [store.new_storage_key() for _ in range(2000)]
    assert len(set(storage_keys)) == 2000


async def test_an_object_that_is_not_there_is_damaged(store: ObjectStore) -> None:
    for end in (1, PART_BYTES + 1):
        with pytest.raises(BlobDamaged):
            await read(store, store.new_storage_key(), 0, end)


async def test_an_object_that_is_shorter_is_damaged(store: ObjectStore) -> None:
    storage_key = await put(store, some_bytes(PART_BYTES + 10))
    for end in (PART_BYTES + 11, 3 * PART_BYTES):
        with pytest.raises(BlobDamaged):
            await read(store, storage_key, 0, end)
    with pytest.raises(BlobDamaged):
        await read(store, storage_key, 2 * PART_BYTES, 2 * PART_BYTES + 1)


async def test_an_object_is_not_there_before_it_is_finished(store: ObjectStore) -> None:
    storage_key = store.new_storage_key()
    writer = await store.write(storage_key, size=5)
    await writer.write(b"12345")
    await writer.sync()
    with pytest.raises(BlobDamaged):
        await read(store, storage_key, 0, 5)
    await writer.finish()
    assert await read(store, storage_key, 0, 5) == b"12345"


async def test_a_place_is_written_once(store: ObjectStore) -> None:
    storage_key = await put(store, b"first")
    with pytest.raises(IngotError):
        await put(store, b"other", storage_key=storage_key)
    assert await read(store, storage_key, 0, 5) == b"first"


async def test_an_upload_goes_on_behind_what_was_synced(store: ObjectStore) -> None:
    skip_unless_it_resumes(store)
    data = some_bytes(9 * PART_BYTES + 77)
    kept = 6 * PART_BYTES
    storage_key = store.new_storage_key()
    writer = await store.write(storage_key, size=len(data))
    await writer.write(data[:kept])
    await writer.sync()
    await writer.write(b"what is lost" * 10_000)
    await writer.abort()
    writer = await store.resume(storage_key, offset=kept)
    assert writer.offset == kept
    await writer.write(data[kept:])
    await writer.finish()
    assert await read(store, storage_key, 0, len(data)) == data


async def test_an_upload_that_goes_on_may_become_shorter_than_it_was(store: ObjectStore) -> None:
    skip_unless_it_resumes(store)
    data = some_bytes(6 * PART_BYTES)
    storage_key = store.new_storage_key()
    writer = await store.write(storage_key, size=None)
    await writer.write(data)
    await writer.sync()
    await writer.write(data)
    await writer.abort()
    writer = await store.resume(storage_key, offset=len(data))
    await writer.write(b"end")
    await writer.finish()
    assert await read(store, storage_key, 0, len(data) + 3) == data + b"end"
    with pytest.raises(BlobDamaged):
        await read(store, storage_key, 0, len(data) + 4)


async def test_an_upload_that_was_never_begun_cannot_go_on(store: ObjectStore) -> None:
    with pytest.raises(StoreError):
        await store.resume(store.new_storage_key(), offset=10)


async def test_what_an_earlier_writer_still_sends_does_not_get_in(store: ObjectStore) -> None:
    skip_unless_it_resumes(store)
    data = some_bytes(6 * PART_BYTES)
    storage_key = store.new_storage_key()
    old = await store.write(storage_key, size=None)
    await old.write(data)
    await old.sync()
    new = await store.resume(storage_key, offset=len(data))
    late = asyncio.create_task(_go_on_as_if_alone(old))
    await new.write(b"n" * PART_BYTES)
    await late
    await new.write(b"end")
    await new.finish()
    await _go_on_as_if_alone(old)
    whole = data + b"n" * PART_BYTES + b"end"
    assert await read(store, storage_key, 0, len(whole)) == whole


async def _go_on_as_if_alone(writer: ObjectWriter) -> None:
    for _ in range(3):
        with suppress(IngotError):
            await writer.write(b"o" * PART_BYTES)
    with suppress(IngotError):
        await writer.finish()


async def test_a_deleted_object_is_gone(store: ObjectStore) -> None:
    storage_key, other = await put(store, b"gone"), await put(store, b"kept")
    await store.delete(TrashedObject(storage_key=storage_key))
    with pytest.raises(BlobDamaged):
        await read(store, storage_key, 0, 4)
    assert await read(store, other, 0, 4) == b"kept"


async def test_deleting_what_is_not_there_is_fine(store: ObjectStore) -> None:
    storage_key = await put(store, b"gone")
    for _ in range(2):
        await store.delete(TrashedObject(storage_key=storage_key))
    await store.delete(TrashedObject(storage_key=store.new_storage_key()))


async def test_an_unfinished_object_is_deleted(store: ObjectStore) -> None:
    storage_key = store.new_storage_key()
    writer = await store.write(storage_key, size=None)
    await writer.write(some_bytes(6 * PART_BYTES))
    await writer.sync()
    await writer.abort()
    await store.delete(TrashedObject(storage_key=storage_key))
    with pytest.raises(StoreError):
        await store.resume(storage_key, offset=6 * PART_BYTES)


async def test_stopping_twice_is_fine(store: ObjectStore) -> None:
    writer = await store.write(store.new_storage_key(), size=None)
    await writer.write(b"bytes")
    for _ in range(2):
        await writer.abort()


async def test_many_at_once(store: ObjectStore) -> None:
    objects = [some_bytes(20_000 + number) for number in range(24)]
    storage_keys = await asyncio.gather(*(put(store, data, piece=7_000) for data in objects))
    found = await asyncio.gather(
        *(read(store, storage_key, 0, len(data)) for storage_key, data in zip(storage_keys, objects, strict=True))
    )
    assert found == objects


async def test_a_reader_may_stop_early(store: ObjectStore) -> None:
    data = some_bytes(3 * PART_BYTES)
    storage_key = await put(store, data)
    async with aclosing(store.read(storage_key, 0, len(data))) as parts:
        assert await anext(parts) == data[:PART_BYTES]
    assert await read(store, storage_key, 0, len(data)) == data


@pytest.mark.parametrize("size", SIZES)
async def test_what_is_stored_has_the_digests_of_what_came(store: ObjectStore, size: int) -> None:
    data = some_bytes(size)
    hasher = Hasher()
    await hasher.update(data)
    storage_key = await put(store, data)
    assert await hash_object(store, storage_key, size) == hasher.content(storage_key=storage_key)


async def test_any_range_is_read_verified(store: ObjectStore) -> None:
    data = some_bytes(3 * PART_BYTES + 4711)
    hasher = Hasher()
    await hasher.update(data)
    content = hasher.content(storage_key=await put(store, data))
    edges = [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, 3 * PART_BYTES + 1, len(data)]
    for start in edges:
        for end in [edge for edge in edges if edge >= start]:
            got = b"".join([part async for part in read_verified(store, content, start, end)])
            assert got == data[start:end]
    assert len(content.part_checksums) == 4 * CHECKSUM_BYTES
