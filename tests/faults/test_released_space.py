"""Uploads that fill the disk: the space of unsynced bytes is released at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingot.kernel.clock import SystemClock
from ingot.kernel.errors import StorageFull
from ingot.objects.local import LocalStore
from tests.faults.bad_disk import SYNCED, UNSYNCED, BadDisk


@pytest.mark.parametrize("synced", [0, len(SYNCED)])
@pytest.mark.parametrize("resumed", [False, True])
async def test_a_write_on_a_full_disk_keeps_only_synced_bytes(tmp_path: Path, synced: int, resumed: bool) -> None:
    disk = BadDisk()
    store = await LocalStore.open(tmp_path, clock=SystemClock(), syscalls=disk)
    try:
        storage_key = store.new_storage_key()
        writer = await store.write(storage_key, size=None)
        await writer.write(SYNCED)
        if synced:
            await writer.sync()
        if resumed:
            writer = await store.resume(storage_key, offset=synced)
        await writer.write(UNSYNCED)
        disk.steps_left = 0
        with pytest.raises(StorageFull):
            await writer.write(UNSYNCED)
        assert (tmp_path / "blobs" / "uploads" / storage_key).stat().st_size == synced
        disk.steps_left = None
        again = await store.resume(storage_key, offset=synced)
        await again.write(UNSYNCED)
        await again.finish()
        assert (
            b"".join([part async for part in store.read(storage_key, 0, synced + len(UNSYNCED))])
            == SYNCED[:synced] + UNSYNCED
        )
    finally:
        await store.close()
