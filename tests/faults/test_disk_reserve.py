"""A full disk: the store opens, and deletes, cancels and settles succeed with space from its reserve."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import apsw
import pytest

from ingot.engines.sqlite import SQLiteStore, disk_reserve
from ingot.engines.sqlite.disk_reserve import RESERVE_NAME, STEP_BYTES
from ingot.identity import Tenants
from ingot.jobs import JobStatus
from ingot.jobs.job_options import new_job
from ingot.kernel.clock import ManualClock
from ingot.kernel.errors import StorageFull
from tests.conformance.blob_fixture import BlobFixture
from tests.factories import LEASE_SECONDS, Bench
from tests.faults.small_disk import small_disk
from tests.faults.watched_files import WatchedFile, WatchingVFS
from tests.waiting import eventually

MIB = 2**20
DISK = "96m"
RESERVE = 96 * MIB // 20


@asynccontextmanager
async def open_on(disk: Path, *, reserve_bytes: int = 16 * MIB) -> AsyncIterator[Bench]:
    clock = ManualClock()
    store = await SQLiteStore.open(disk / "data", clock=clock, lease_seconds=LEASE_SECONDS, reserve_bytes=reserve_bytes)
    try:
        yield Bench(store, clock, await Tenants(store).ensure_default())
    finally:
        await store.close()


def fill(disk: Path) -> Path:
    """Write a file that takes all free space of the disk."""
    path = disk / "filler"
    with path.open("ab", buffering=0) as file:
        for size in (MIB, 4096, 1):
            with suppress(OSError):
                while file.write(b"x" * size) == size:
                    pass
    return path


def reserved(disk: Path) -> int:
    return (disk / "data" / RESERVE_NAME).stat().st_size


async def enqueue_until_full(bench: Bench, disk: Path) -> None:
    """Fill the disk, and enqueue jobs until that fails."""
    fill(disk)

    async def enqueue() -> None:
        for _ in range(10_000):
            await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", "x" * 9000) for _ in range(10)])

    with pytest.raises(StorageFull):
        await enqueue()


class FullUntilReleased(WatchingVFS):
    """A disk that is full while the reserve in the folder is complete."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.reserve = folder / RESERVE_NAME
        self.is_full = False

    def write(self, file: WatchedFile, data: bytes, offset: int) -> None:
        if self.is_full and file.is_log and self.reserve.stat().st_size >= 2 * STEP_BYTES:
            raise apsw.FullError
        super().write(file, data, offset)


async def test_only_commands_that_add_data_are_refused_when_the_reserve_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_reserve, "REFILL_INTERVAL_SECONDS", math.inf)
    clock, disk = ManualClock(), FullUntilReleased(tmp_path)
    store = await SQLiteStore.open(
        tmp_path, clock=clock, lease_seconds=LEASE_SECONDS, vfs=disk.vfs, reserve_bytes=2 * STEP_BYTES
    )
    bench = Bench(store, clock, await Tenants(store).ensure_default())
    claims = [await bench.make_claim() for _ in range(3)]
    queued = await bench.make_job("queued")
    disk.is_full = True
    results = await asyncio.gather(
        bench.make_job(),
        bench.jobs.complete(claims[0]),
        bench.jobs.claim("worker", ["queued"]),
        bench.events.publish(bench.tenant, "order.paid", 1),
        bench.jobs.fail(claims[1], "broken"),
        return_exceptions=True,
    )
    assert [isinstance(result, StorageFull) for result in results] == [True, False, True, True, False]
    assert disk.reserve.stat().st_size == STEP_BYTES
    with pytest.raises(StorageFull):
        await bench.make_job()
    await bench.jobs.heartbeat(claims[2].job.id, claims[2].fence)
    assert (await bench.jobs.cancel(bench.tenant, queued.id)).status is JobStatus.CANCELED
    assert disk.reserve.stat().st_size == STEP_BYTES
    disk.is_full = False
    monkeypatch.setattr(disk_reserve, "REFILL_INTERVAL_SECONDS", 0)
    await bench.make_job()
    assert disk.reserve.stat().st_size == 2 * STEP_BYTES
    await store.close()


async def test_jobs_are_settled_and_canceled_and_keys_deleted_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", DISK) as disk:
        async with open_on(disk) as bench:
            assert abs(reserved(disk) - RESERVE) < 4096
            blobs = BlobFixture(bench)
            await blobs.put("k", b"data")
            claims = [await bench.make_claim() for _ in range(20)]
            queued = [await bench.make_job("queued") for _ in range(20)]
            await enqueue_until_full(bench, disk)
            for _ in range(3):
                with pytest.raises(StorageFull):
                    await bench.make_job()
                with pytest.raises(StorageFull):
                    await blobs.put("other", b"data")
                with pytest.raises(StorageFull):
                    await bench.jobs.claim("worker", ["queued"])
            for claim in claims:
                await bench.jobs.heartbeat(claim.job.id, claim.fence)
                assert (await bench.jobs.complete(claim, {"a": "x" * 1000})).status is JobStatus.SUCCEEDED
            for job in queued:
                assert (await bench.jobs.cancel(bench.tenant, job.id)).status is JobStatus.CANCELED
            await blobs.delete("k")
            assert 0 < reserved(disk) < RESERVE, "the reserve was not used, or all of it"


async def test_a_store_opens_on_a_full_disk_and_recovers_when_there_is_space(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", DISK) as disk:
        async with open_on(disk) as bench:
            claim = await bench.make_claim()
        filler = fill(disk)
        async with open_on(disk) as bench:
            assert reserved(disk) < RESERVE
            with pytest.raises(StorageFull):
                await bench.make_job()
            assert (await bench.jobs.complete(claim)).status is JobStatus.SUCCEEDED
        fill(disk)
        async with open_on(disk) as bench:
            filler.unlink()
            await wait_until_accepted(bench)
            assert abs(reserved(disk) - RESERVE) < 4096


async def wait_until_accepted(bench: Bench) -> None:
    """Enqueue jobs until one is accepted. The store looks for free space once a second."""

    async def is_accepted() -> bool:
        try:
            await bench.make_job()
        except StorageFull:
            return False
        return True

    await eventually(is_accepted)


async def test_a_store_without_a_reserve_reports_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", DISK) as disk:
        async with open_on(disk, reserve_bytes=0) as bench:
            await enqueue_until_full(bench, disk)
            assert not (disk / "data" / RESERVE_NAME).exists()
        fill(disk)
        with pytest.raises(StorageFull):
            async with open_on(disk, reserve_bytes=0):
                pass


async def test_the_reserve_is_released_in_steps_and_not_filled_while_the_disk_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "400m") as disk:
        async with open_on(disk) as bench:
            assert reserved(disk) == 16 * MIB
            await enqueue_until_full(bench, disk)
            assert reserved(disk) == 16 * MIB - STEP_BYTES
            assert os.statvfs(disk).f_bavail > 0
