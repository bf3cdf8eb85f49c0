"""Puts and uploads on a full disk: each step fails with `StorageFull`, leaves nothing behind, and succeeds later."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ingot.blobs.garbage_collector import GarbageCollector
from ingot.blobs.incoming import IncomingBlob
from ingot.blobs.model import PART_BYTES, UploadState, Usage
from ingot.blobs.service import Blobs
from ingot.blobs.uploads import Uploads
from ingot.kernel.clock import SystemClock
from ingot.kernel.errors import StorageFull
from ingot.objects.local import LocalStore
from tests.factories import Bench, open_bench
from tests.faults.bad_disk import BadDisk

DATA = bytes(range(256)) * (PART_BYTES // 128)
PIECE_BYTES = 300_000
STEPS_MAX = 40


async def parts(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]


@asynccontextmanager
async def open_rooms(folder: Path, disk: BadDisk) -> AsyncIterator[tuple[Bench, LocalStore]]:
    async with open_bench("sqlite", folder) as bench:
        objects = await LocalStore.open(folder, clock=SystemClock(), syscalls=disk)
        try:
            yield bench, objects
        finally:
            disk.steps_left = None
            await objects.close()


async def storage_keys(objects: LocalStore) -> list[str]:
    return [storage_key async for storage_key, _ in objects.list_objects()]


async def test_a_put_on_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    disk = BadDisk()
    async with open_rooms(tmp_path / "data", disk) as (bench, objects):
        blobs = Blobs(bench.store, objects)
        collector = GarbageCollector(bench.store, objects, every_seconds=1, grace_seconds=0)
        incoming = IncomingBlob(tenant=bench.tenant, owner="token:ann")
        for steps in range(STEPS_MAX):
            disk.steps_left = steps
            try:
                await blobs.put("a", parts(DATA), incoming)
                break
            except StorageFull:
                disk.steps_left = None
            assert await blobs.usage(bench.tenant) == Usage()
            assert (await blobs.keys(bench.tenant)).items == []
            await collector.run_once()
            assert await storage_keys(objects) == []
        assert 5 < steps < STEPS_MAX - 1, "some step never failed"
        assert await (await blobs.open_key(bench.tenant, "a"))[1].read_all() == DATA


async def test_an_upload_on_a_full_disk_resumes_when_space_is_free(tmp_path: Path) -> None:
    disk = BadDisk()
    async with open_rooms(tmp_path / "data", disk) as (bench, objects):
        blobs, uploads = Blobs(bench.store, objects), Uploads(bench.store, objects)
        incoming = IncomingBlob(tenant=bench.tenant, owner="token:ann", size=len(DATA))
        id = (await uploads.begin(incoming, key="a")).upload.id
        failures = offset = 0
        while offset < len(DATA):
            disk.steps_left = failures
            end = len(DATA) if failures % 2 else min(len(DATA), offset + PIECE_BYTES)
            try:
                offset = (await uploads.receive(bench.tenant, id, offset, parts(DATA[offset:end]))).received
            except StorageFull:
                failures += 1
            disk.steps_left = None
            assert (await uploads.take_over(bench.tenant, id)).received == offset
            assert await blobs.usage(bench.tenant) == Usage(reserved_bytes=len(DATA))
        done = await uploads.complete(bench.tenant, id)
        assert (failures > 3, done.upload.state) == (True, UploadState.DONE)
        assert await (await blobs.open_key(bench.tenant, "a"))[1].read_all() == DATA
        assert len(await storage_keys(objects)) == 1
