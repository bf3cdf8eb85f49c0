"""Files never fill the disk completely: spare space stays free, so that deletes still work and free more."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ingot.blobs.garbage_collector import GarbageCollector
from ingot.blobs.incoming import IncomingBlob
from ingot.blobs.model import INLINE_BYTES_MAX, PART_BYTES, TrashedObject, Usage
from ingot.blobs.service import Blobs
from ingot.blobs.uploads import Uploads
from ingot.kernel.clock import SystemClock
from ingot.kernel.errors import StorageFull
from ingot.objects.free_space import SPARE_BYTES, SPARE_DIVISOR, FreeSpace
from ingot.objects.local import LocalStore
from ingot.objects.local_writer import LocalWriter
from ingot.objects.syscalls import Syscalls
from tests.conformance.object_stores import put, read
from tests.factories import Bench, open_bench
from tests.faults.bad_disk import files_below
from tests.faults.small_disk import small_disk

MIB = 1024 * 1024
SPARE = 24 * MIB  # The log of the database grows to 16 MiB, and its file grows by as much.
DISK = "64m"
PUTS_MAX = 5000


class TightDisk(Syscalls):
    """A disk of `total` bytes, of which the files in the folder and `taken` more bytes are used."""

    def __init__(self, folder: Path, total: int) -> None:
        super().__init__()
        self._folder = folder
        self._total = total
        self.taken = 0

    def disk_space(self, path: str) -> tuple[int, int]:
        used = sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())
        return self._total - used - self.taken, self._total


@asynccontextmanager
async def open_tight_store(folder: Path, total: int, spare: int | None) -> AsyncIterator[tuple[LocalStore, TightDisk]]:
    disk = TightDisk(folder, total)
    store = await LocalStore.open(folder, clock=SystemClock(), syscalls=disk, spare_bytes=spare)
    try:
        yield store, disk
    finally:
        await store.close()


async def fill(writer: LocalWriter, disk: TightDisk, spare: int) -> None:
    for _ in range(8):
        await writer.write(bytes(PART_BYTES))
        assert disk.disk_space("")[0] >= spare


async def test_a_write_that_would_use_spare_space_is_refused_at_its_start(tmp_path: Path) -> None:
    async with open_tight_store(tmp_path, 4 * MIB, MIB) as (store, disk):
        before = files_below(tmp_path)
        free = disk.disk_space("")[0] - MIB
        with pytest.raises(StorageFull):
            await store.write(store.new_storage_key(), size=free + 1)
        with pytest.raises(StorageFull):
            store.check_free_space(free + 1)
        assert files_below(tmp_path) == before
        store.check_free_space(free)
        writer = await store.write(store.new_storage_key(), size=free)
        disk.taken = 2 * MIB  # Space for the announced size was allocated before.
        await writer.write(bytes(free))
        await writer.finish()
        with pytest.raises(StorageFull):
            await store.write(store.new_storage_key(), size=None)


async def test_two_concurrent_writes_leave_the_spare_space_free(tmp_path: Path) -> None:
    """The second write begins when the first has checked the free space and not allocated its own."""

    class Slow(TightDisk):
        def __init__(self, folder: Path, total: int) -> None:
            super().__init__(folder, total)
            self.other = 0

        def allocate(self, handle: int, size: int) -> None:
            self.taken += self.other
            super().allocate(handle, size)

    disk = Slow(tmp_path, 4 * MIB)
    store = await LocalStore.open(tmp_path, clock=SystemClock(), syscalls=disk, spare_bytes=MIB)
    before = files_below(tmp_path)
    disk.other = 2 * MIB
    with pytest.raises(StorageFull):
        await store.write(store.new_storage_key(), size=2 * MIB)
    assert files_below(tmp_path) == before
    disk.taken = disk.other = 0
    await (await store.write(store.new_storage_key(), size=2 * MIB)).abort()
    await store.close()


@pytest.mark.parametrize("synced", [0, PART_BYTES])
async def test_a_write_of_unknown_size_stops_before_the_spare_space(tmp_path: Path, synced: int) -> None:
    async with open_tight_store(tmp_path, 8 * MIB, 2 * MIB) as (store, disk):
        storage_key = store.new_storage_key()
        writer = await store.write(storage_key, size=None)
        await writer.write(bytes(PART_BYTES))
        if synced:
            await writer.sync()
        with pytest.raises(StorageFull):
            await fill(writer, disk, 2 * MIB)
        assert (tmp_path / "blobs" / "uploads" / storage_key).stat().st_size == synced, (
            "the space of unsynced bytes was not released"
        )
        again = await store.resume(storage_key, offset=synced)
        await again.write(b"data")
        await again.finish()
        assert await read(store, storage_key, 0, synced + 4) == bytes(synced) + b"data"


async def test_a_resumed_write_stops_before_the_spare_space(tmp_path: Path) -> None:
    async with open_tight_store(tmp_path, 8 * MIB, 2 * MIB) as (store, disk):
        storage_key = store.new_storage_key()
        writer = await store.write(storage_key, size=5 * MIB)
        await writer.write(bytes(PART_BYTES))
        await writer.sync()
        writer = await store.resume(storage_key, offset=PART_BYTES)  # This releases the allocated space.
        disk.taken = 4 * MIB
        with pytest.raises(StorageFull):
            await fill(writer, disk, 2 * MIB)


async def test_a_delete_needs_no_free_space(tmp_path: Path) -> None:
    async with open_tight_store(tmp_path, 4 * MIB, MIB) as (store, disk):
        storage_key = await put(store, bytes(PART_BYTES))
        disk.taken = 4 * MIB
        before = files_below(tmp_path)
        await store.delete(TrashedObject(storage_key=storage_key))
        assert len(before - files_below(tmp_path)) == 1


@pytest.mark.parametrize(
    ("spare", "total", "expected"),
    [
        (None, 1 << 40, SPARE_BYTES),
        (None, 100 * MIB, 100 * MIB // SPARE_DIVISOR),
        (3 * MIB, 4 * MIB, 3 * MIB),
        (0, 4 * MIB, None),
        (None, 0, None),
    ],
)
def test_the_spare_space_is_a_share_of_the_disk_up_to_a_limit(
    spare: int | None, total: int, expected: int | None
) -> None:
    class ObjectState(Syscalls):
        free = 0

        def disk_space(self, path: str) -> tuple[int, int]:
            return self.free, total

    disk = ObjectState()
    free_space = FreeSpace(disk, "", spare)
    if expected is None:
        free_space.check(1)
        return
    disk.free = expected + 5
    free_space.check(5)
    with pytest.raises(StorageFull):
        free_space.check(6)


# -- a real disk, with the database on it -------------------------------------------------------------------


@asynccontextmanager
async def open_rooms(folder: Path) -> AsyncIterator[tuple[Bench, LocalStore]]:
    with small_disk(folder, DISK) as disk:
        async with open_bench("sqlite", disk / "data") as bench:
            objects = await LocalStore.open(disk / "data", clock=SystemClock(), spare_bytes=SPARE)
            try:
                yield bench, objects
            finally:
                await objects.close()


async def in_parts(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), PART_BYTES):
        yield data[start : start + PART_BYTES]


async def puts_until_full(blobs: Blobs, incoming: IncomingBlob, size: int) -> int:
    for count in range(PUTS_MAX):
        try:
            await blobs.put(f"{count:04}", in_parts(os.urandom(size)), incoming)
        except StorageFull:
            return count
    raise AssertionError("the disk was never full")


@pytest.mark.parametrize(
    ("size", "size_is_known"),
    [(INLINE_BYTES_MAX, True), (4 * INLINE_BYTES_MAX, True), (3 * MIB, True), (3 * MIB, False)],
    ids=["inside", "small", "of_known_size", "of_unknown_size"],
)
async def test_deletes_and_the_collector_work_on_a_disk_filled_by_files(
    tmp_path: Path, size: int, size_is_known: bool
) -> None:
    async with open_rooms(tmp_path / "disk") as (bench, objects):
        blobs = Blobs(bench.store, objects)
        collector = GarbageCollector(bench.store, objects, every_seconds=1, grace_seconds=0)
        incoming = IncomingBlob(tenant=bench.tenant, owner="token:ann", size=size if size_is_known else None)
        count = await puts_until_full(blobs, incoming, size)
        assert count * size > 4 * MIB, "too few files were stored"
        assert Syscalls().disk_space(str(tmp_path / "disk"))[0] > SPARE // 4, "too little space is left"
        assert (await blobs.usage(bench.tenant)).reserved_bytes == 0
        await collector.run_once()
        for number in range(count):
            await blobs.delete(bench.tenant, f"{number:04}")
        bench.clock.advance(seconds=1)
        assert (await collector.run_once()).blobs == count
        assert await blobs.usage(bench.tenant) == Usage()
        for number in range(count // 2):
            await blobs.put(f"{number:04}", in_parts(os.urandom(size)), incoming)
        data = os.urandom(size)
        await blobs.put("again", in_parts(data), incoming)
        assert await (await blobs.open_key(bench.tenant, "again"))[1].read_all() == data


async def test_an_upload_that_announces_the_whole_disk_takes_no_spare_space(tmp_path: Path) -> None:
    async with open_rooms(tmp_path / "disk") as (bench, objects):
        blobs, uploads = Blobs(bench.store, objects), Uploads(bench.store, objects)
        small = IncomingBlob(tenant=bench.tenant, owner="token:ann")
        await blobs.put("a", in_parts(b"a"), small)
        free = Syscalls().disk_space(str(tmp_path / "disk"))[0]
        whole, large = (
            IncomingBlob(tenant=bench.tenant, owner="token:ann", size=free - less) for less in (MIB, SPARE + MIB)
        )
        with pytest.raises(StorageFull):
            await blobs.put("whole", in_parts(bytes(PART_BYTES)), whole)
        begun = await uploads.begin(whole)
        with pytest.raises(StorageFull):
            await uploads.receive(bench.tenant, begun.upload.id, 0, in_parts(bytes(PART_BYTES)))
        await uploads.cancel(bench.tenant, begun.upload.id)
        assert Syscalls().disk_space(str(tmp_path / "disk"))[0] > free - MIB

        started, release = asyncio.Event(), asyncio.Event()

        async def slow_bytes() -> AsyncIterator[bytes]:
            yield bytes(PART_BYTES)
            yield bytes(PART_BYTES)
            started.set()
            await release.wait()

        put = asyncio.create_task(blobs.put("most", slow_bytes(), large))
        try:
            await asyncio.wait_for(started.wait(), 30)
            await blobs.delete(bench.tenant, "a")
            assert (await blobs.keys(bench.tenant)).items == []
        finally:
            put.cancel()
            await asyncio.wait([put])
