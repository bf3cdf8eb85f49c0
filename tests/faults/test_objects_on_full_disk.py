"""A disk that is full, or fails, under the folder store: a clear error, and nothing half-made at a final name."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ingot.blobs.errors import BlobDamaged
from ingot.blobs.model import PART_BYTES, TrashedObject
from ingot.kernel.clock import SystemClock
from ingot.kernel.errors import StorageFull, StoreError, StoreMisconfigured
from ingot.objects.local import LocalStore
from tests.conformance.object_stores import put, read
from tests.faults.bad_disk import KEPT, REST, BadDisk, names_in

STEPS_MAX = 40
STEPS_TO_OPEN = 2 + 2 + 257 + 4 + 1  # Two folders, those in them, the id, and the sync at last.


@pytest.mark.parametrize("size", [len(KEPT + REST), None])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO], ids=errno.errorcode.get)
async def test_whichever_step_fails_the_upload_goes_on_or_is_gone(tmp_path: Path, error: int, size: int | None) -> None:
    disk = BadDisk()
    disk.error = error
    store = await LocalStore.open(tmp_path, clock=SystemClock(), syscalls=disk)
    before = names_in(tmp_path)
    kind = StoreError if error == errno.EIO else StorageFull
    for room in range(STEPS_MAX):
        disk.room = room
        storage_key, kept, writer = store.new_storage_key(), 0, None
        final = tmp_path / "blobs" / storage_key[-2:] / storage_key
        try:
            writer = await store.write(storage_key, size=size)
            await writer.write(KEPT)
            await writer.sync()
            kept = len(KEPT)
            await writer.write(REST)
            await writer.finish()
            break
        except StoreError as failure:
            said = type(failure)
        assert said is kind
        disk.room = None
        if final.exists():
            assert final.read_bytes() == KEPT + REST
        else:
            with pytest.raises(BlobDamaged):
                await read(store, storage_key, 0, len(KEPT))
        if writer is None:
            assert names_in(tmp_path) == before
        else:
            with pytest.raises(StoreError):
                await writer.write(b"after an error")
            await writer.abort()
            writer = await store.resume(storage_key, offset=kept)
            await writer.write((KEPT + REST)[kept:])
            await writer.finish()
            assert await read(store, storage_key, 0, len(KEPT + REST)) == KEPT + REST
        await store.delete(TrashedObject(storage_key=storage_key))
        assert names_in(tmp_path) == before
    assert disk.failures == room > 6
    await store.close()


async def test_opening_on_a_full_disk_is_refused_and_works_later(tmp_path: Path) -> None:
    disk = BadDisk()
    for room in sorted({*range(8), 100, *range(STEPS_TO_OPEN - 6, STEPS_TO_OPEN + 1)}):
        disk.room = room
        if room < STEPS_TO_OPEN:
            with pytest.raises(StoreMisconfigured, match="No space left"):
                await LocalStore.open(tmp_path / str(room), clock=SystemClock(), syscalls=disk)
            disk.room = None
        store = await LocalStore.open(tmp_path / str(room), clock=SystemClock(), syscalls=disk)
        disk.room = None
        assert await read(store, await put(store, b"fine"), 0, 4) == b"fine"
        await store.close()
    assert disk.failures > 10


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """A real write beyond this size fails, in this process and for as long as the block lasts."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_real_lack_of_room_is_told_before_bytes_are_sent(tmp_path: Path) -> None:
    store = await LocalStore.open(tmp_path, clock=SystemClock())
    before = names_in(tmp_path)
    with no_file_larger_than(2 * PART_BYTES), pytest.raises(StorageFull):
        await store.write(store.new_storage_key(), size=2 * PART_BYTES + 1)
    with pytest.raises(StorageFull):
        await store.write(store.new_storage_key(), size=1 << 60)
    assert names_in(tmp_path) == before
    await store.close()


async def test_a_real_lack_of_room_on_the_way_keeps_what_was_synced(tmp_path: Path) -> None:
    store = await LocalStore.open(tmp_path, clock=SystemClock())
    storage_key = store.new_storage_key()
    with no_file_larger_than(2 * PART_BYTES):
        writer = await store.write(storage_key, size=None)
        await writer.write(KEPT)
        await writer.sync()
        with pytest.raises(StorageFull):
            await writer.write(bytes(2 * PART_BYTES))
    writer = await store.resume(storage_key, offset=len(KEPT))
    await writer.write(REST)
    await writer.finish()
    assert await read(store, storage_key, 0, len(KEPT + REST)) == KEPT + REST
    await store.close()
