"""A disk that fills up under an upload, with the database on it: what was written is given back at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingot.kernel.clock import SystemClock
from ingot.kernel.errors import StorageFull
from ingot.objects.local import LocalStore
from tests.faults.bad_disk import KEPT, REST, BadDisk


@pytest.mark.parametrize("synced", [0, len(KEPT)])
@pytest.mark.parametrize("resumed", [False, True])
async def test_a_write_without_room_leaves_only_what_was_synced(tmp_path: Path, synced: int, resumed: bool) -> None:
    disk = BadDisk()
    store = await LocalStore.open(tmp_path, clock=SystemClock(), syscalls=disk)
    try:
        storage_key = store.new_storage_key()
        writer = await store.write(storage_key, size=None)
        await writer.write(KEPT)
        if synced:
            await writer.sync()
        if resumed:
            writer = await store.resume(storage_key, offset=synced)
        await writer.write(REST)
        disk.room = 0
        with pytest.raises(StorageFull):
            await writer.write(REST)
        assert (tmp_path / "blobs" / "uploads" / storage_key).stat().st_size == synced
        disk.room = None
        again = await store.resume(storage_key, offset=synced)
        await again.write(REST)
        await again.finish()
        assert b"".join([part async for part in store.read(storage_key, 0, synced + len(REST))]) == KEPT[:synced] + REST
    finally:
        await store.close()
