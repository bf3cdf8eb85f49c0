"""The folder store on a disk that is full or fails: a clear error, and no partial object at a final name."""

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
from tests.faults.bad_disk import SYNCED, UNSYNCED, BadDisk, files_below

STEPS_MAX = 40
STEPS_TO_OPEN = 2 + 2 + 257 + 4 + 1  # Two folders, the folders in them, the ID, and the final sync.


@pytest.mark.parametrize("size", [len(SYNCED + UNSYNCED), None])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO], ids=errno.errorcode.get)
async def test_an_upload_with_a_failed_step_can_be_resumed_or_leaves_nothing(
    tmp_path: Path, error: int, size: int | None
) -> None:
    disk = BadDisk()
    disk.error = error
    store = await LocalStore.open(tmp_path, clock=SystemClock(), syscalls=disk)
    before = files_below(tmp_path)
    kind = StoreError if error == errno.EIO else StorageFull
    for steps in range(STEPS_MAX):
        disk.steps_left = steps
        storage_key, synced_bytes, writer = store.new_storage_key(), 0, None
        final = tmp_path / "blobs" / storage_key[-2:] / storage_key
        try:
            writer = await store.write(storage_key, size=size)
            await writer.write(SYNCED)
            await writer.sync()
            synced_bytes = len(SYNCED)
            await writer.write(UNSYNCED)
            await writer.finish()
            break
        except StoreError as failure:
            raised = type(failure)
        assert raised is kind
        disk.steps_left = None
        if final.exists():
            assert final.read_bytes() == SYNCED + UNSYNCED
        else:
            with pytest.raises(BlobDamaged):
                await read(store, storage_key, 0, len(SYNCED))
        if writer is None:
            assert files_below(tmp_path) == before
        else:
            with pytest.raises(StoreError):
                await writer.write(b"after an error")
            await writer.abort()
            writer = await store.resume(storage_key, offset=synced_bytes)
            await writer.write((SYNCED + UNSYNCED)[synced_bytes:])
            await writer.finish()
            assert await read(store, storage_key, 0, len(SYNCED + UNSYNCED)) == SYNCED + UNSYNCED
        await store.delete(TrashedObject(storage_key=storage_key))
        assert files_below(tmp_path) == before
    assert disk.failures == steps > 6
    await store.close()


async def test_opening_a_store_on_a_full_disk_fails_and_succeeds_later(tmp_path: Path) -> None:
    disk = BadDisk()
    for steps in sorted({*range(8), 100, *range(STEPS_TO_OPEN - 6, STEPS_TO_OPEN + 1)}):
        disk.steps_left = steps
        if steps < STEPS_TO_OPEN:
            with pytest.raises(StoreMisconfigured, match="No space left"):
                await LocalStore.open(tmp_path / str(steps), clock=SystemClock(), syscalls=disk)
            disk.steps_left = None
        store = await LocalStore.open(tmp_path / str(steps), clock=SystemClock(), syscalls=disk)
        disk.steps_left = None
        assert await read(store, await put(store, b"fine"), 0, 4) == b"fine"
        await store.close()
    assert disk.failures > 10


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """Let real writes beyond this size fail, in this process and until the end of the block."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_write_without_enough_space_fails_before_bytes_are_sent(tmp_path: Path) -> None:
    store = await LocalStore.open(tmp_path, clock=SystemClock())
    before = files_below(tmp_path)
    with no_file_larger_than(2 * PART_BYTES), pytest.raises(StorageFull):
        await store.write(store.new_storage_key(), size=2 * PART_BYTES + 1)
    with pytest.raises(StorageFull):
        await store.write(store.new_storage_key(), size=1 << 60)
    assert files_below(tmp_path) == before
    await store.close()


async def test_a_write_that_runs_out_of_space_keeps_synced_bytes(tmp_path: Path) -> None:
    store = await LocalStore.open(tmp_path, clock=SystemClock())
    storage_key = store.new_storage_key()
    with no_file_larger_than(2 * PART_BYTES):
        writer = await store.write(storage_key, size=None)
        await writer.write(SYNCED)
        await writer.sync()
        with pytest.raises(StorageFull):
            await writer.write(bytes(2 * PART_BYTES))
    writer = await store.resume(storage_key, offset=len(SYNCED))
    await writer.write(UNSYNCED)
    await writer.finish()
    assert await read(store, storage_key, 0, len(SYNCED + UNSYNCED)) == SYNCED + UNSYNCED
    await store.close()
