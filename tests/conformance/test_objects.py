"""Object stores: storage keys are written once, bytes are read unchanged, and interrupted uploads can be resumed."""

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
    """Each object store in turn."""
    async with STORES[request.param](tmp_path / "data") as store:
        yield store


def random_bytes(size: int) -> bytes:
    """Random bytes, the same for each size."""
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize("size", SIZES)
async def test_an_object_is_read_in_parts(store: ObjectStore, size: int) -> None:
    data = random_bytes(size)
    storage_key = await put(store, data)
    parts = [bytes(part) async for part in store.read(storage_key, 0, size)]
    assert parts == [data[start : start + PART_BYTES] for start in range(0, size, PART_BYTES)]


async def test_an_object_of_unknown_size_is_stored(store: ObjectStore) -> None:
    data = random_bytes(2 * PART_BYTES + 5)
    storage_key = store.new_storage_key()
    writer = await store.write(storage_key, size=None)
    for start in range(0, len(data), 300_001):
        assert writer.offset == start
        await writer.write(data[start : start + 300_001])
    await writer.finish()
    assert await read(store, storage_key, 0, len(data)) == data


async def test_an_object_can_be_shorter_than_announced(store: ObjectStore) -> None:
    storage_key = store.new_storage_key()
    writer = await store.write(storage_key, size=3 * PART_BYTES)
    await writer.write(b"few")
    await writer.finish()
    assert await read(store, storage_key, 0, 3) == b"few"
    with pytest.raises(BlobDamaged):
        await read(store, storage_key, 0, 4)


async def test_a_range_can_start_at_any_part_and_end_anywhere(store: ObjectStore) -> None:
    data = random_bytes(3 * PART_BYTES + 9)
    storage_key = await put(store, data)
    for start, end in [
        (0, 1),
        (PART_BYTES, PART_BYTES + 1),
        (PART_BYTES, 3 * PART_BYTES + 9),
        (3 * PART_BYTES, 3 * PART_BYTES + 3),
    ]:
        assert await read(store, storage_key, start, end) == data[start:end]


async def test_new_storage_keys_are_unique(store: ObjectStore) -> None:
    storage_keys = [store.new_storage_key() for _ in range(2000)]
    assert len(set(storage_keys)) == 2000


async def test_reading_a_missing_object_raises_blob_damaged(store: ObjectStore) -> None:
    for end in (1, PART_BYTES + 1):
        with pytest.raises(BlobDamaged):
            await read(store, store.new_storage_key(), 0, end)


async def test_reading_past_the_end_of_an_object_raises_blob_damaged(store: ObjectStore) -> None:
    storage_key = await put(store, random_bytes(PART_BYTES + 10))
    for end in (PART_BYTES + 11, 3 * PART_BYTES):
        with pytest.raises(BlobDamaged):
            await read(store, storage_key, 0, end)
    with pytest.raises(BlobDamaged):
        await read(store, storage_key, 2 * PART_BYTES, 2 * PART_BYTES + 1)


async def test_an_object_is_not_readable_before_it_is_finished(store: ObjectStore) -> None:
    storage_key = store.new_storage_key()
    writer = await store.write(storage_key, size=5)
    await writer.write(b"12345")
    await writer.sync()
    with pytest.raises(BlobDamaged):
        await read(store, storage_key, 0, 5)
    await writer.finish()
    assert await read(store, storage_key, 0, 5) == b"12345"


async def test_a_storage_key_can_be_written_only_once(store: ObjectStore) -> None:
    storage_key = await put(store, b"first")
    with pytest.raises(IngotError):
        await put(store, b"other", storage_key=storage_key)
    assert await read(store, storage_key, 0, 5) == b"first"


async def test_an_upload_resumes_after_its_last_sync(store: ObjectStore) -> None:
    skip_unless_it_resumes(store)
    data = random_bytes(9 * PART_BYTES + 77)
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


async def test_a_resumed_upload_can_end_before_the_bytes_written_earlier(store: ObjectStore) -> None:
    skip_unless_it_resumes(store)
    data = random_bytes(6 * PART_BYTES)
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


async def test_an_upload_that_was_never_begun_cannot_be_resumed(store: ObjectStore) -> None:
    with pytest.raises(StoreError):
        await store.resume(store.new_storage_key(), offset=10)


async def test_late_bytes_of_an_earlier_writer_are_not_stored(store: ObjectStore) -> None:
    skip_unless_it_resumes(store)
    data = random_bytes(6 * PART_BYTES)
    storage_key = store.new_storage_key()
    old = await store.write(storage_key, size=None)
    await old.write(data)
    await old.sync()
    new = await store.resume(storage_key, offset=len(data))
    late = asyncio.create_task(_write_as_the_only_writer(old))
    await new.write(b"n" * PART_BYTES)
    await late
    await new.write(b"end")
    await new.finish()
    await _write_as_the_only_writer(old)
    whole = data + b"n" * PART_BYTES + b"end"
    assert await read(store, storage_key, 0, len(whole)) == whole


async def _write_as_the_only_writer(writer: ObjectWriter) -> None:
    for _ in range(3):
        with suppress(IngotError):
            await writer.write(b"o" * PART_BYTES)
    with suppress(IngotError):
        await writer.finish()


async def test_a_deleted_object_cannot_be_read(store: ObjectStore) -> None:
    storage_key, other = await put(store, b"gone"), await put(store, b"kept")
    await store.delete(TrashedObject(storage_key=storage_key))
    with pytest.raises(BlobDamaged):
        await read(store, storage_key, 0, 4)
    assert await read(store, other, 0, 4) == b"kept"


async def test_deleting_a_missing_object_succeeds(store: ObjectStore) -> None:
    storage_key = await put(store, b"gone")
    for _ in range(2):
        await store.delete(TrashedObject(storage_key=storage_key))
    await store.delete(TrashedObject(storage_key=store.new_storage_key()))


async def test_an_unfinished_object_can_be_deleted(store: ObjectStore) -> None:
    storage_key = store.new_storage_key()
    writer = await store.write(storage_key, size=None)
    await writer.write(random_bytes(6 * PART_BYTES))
    await writer.sync()
    await writer.abort()
    await store.delete(TrashedObject(storage_key=storage_key))
    with pytest.raises(StoreError):
        await store.resume(storage_key, offset=6 * PART_BYTES)


async def test_a_writer_can_be_aborted_twice(store: ObjectStore) -> None:
    writer = await store.write(store.new_storage_key(), size=None)
    await writer.write(b"bytes")
    for _ in range(2):
        await writer.abort()


async def test_many_objects_can_be_written_and_read_concurrently(store: ObjectStore) -> None:
    objects = [random_bytes(20_000 + number) for number in range(24)]
    storage_keys = await asyncio.gather(*(put(store, data, piece=7_000) for data in objects))
    contents = await asyncio.gather(
        *(read(store, storage_key, 0, len(data)) for storage_key, data in zip(storage_keys, objects, strict=True))
    )
    assert contents == objects


async def test_a_reader_can_stop_early(store: ObjectStore) -> None:
    data = random_bytes(3 * PART_BYTES)
    storage_key = await put(store, data)
    async with aclosing(store.read(storage_key, 0, len(data))) as parts:
        assert await anext(parts) == data[:PART_BYTES]
    assert await read(store, storage_key, 0, len(data)) == data


@pytest.mark.parametrize("size", SIZES)
async def test_a_stored_object_has_the_digests_of_the_written_bytes(store: ObjectStore, size: int) -> None:
    data = random_bytes(size)
    hasher = Hasher()
    await hasher.update(data)
    storage_key = await put(store, data)
    assert await hash_object(store, storage_key, size) == hasher.content(storage_key=storage_key)


async def test_any_range_can_be_read_verified(store: ObjectStore) -> None:
    data = random_bytes(3 * PART_BYTES + 4711)
    hasher = Hasher()
    await hasher.update(data)
    content = hasher.content(storage_key=await put(store, data))
    edges = [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, 3 * PART_BYTES + 1, len(data)]
    for start in edges:
        for end in [edge for edge in edges if edge >= start]:
            data_read = b"".join([part async for part in read_verified(store, content, start, end)])
            assert data_read == data[start:end]
    assert len(content.part_checksums) == 4 * CHECKSUM_BYTES
