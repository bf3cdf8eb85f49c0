"""What cannot be taken away now does not keep the collector from what is behind it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ingot.blobs import garbage_collector as of_collector
from ingot.blobs.garbage_collector import GarbageCollector
from ingot.blobs.model import TrashedObject
from ingot.blobs.ports import GetBlobMetrics, ListTombstonedBlobs, ListTrash
from ingot.kernel.errors import StoreError
from tests.conformance.blob_fixture import BlobFixture, blobs, id_of

__all__ = ["blobs"]

ROUNDS_MAX = 10


class Stuck:
    """A store in which some objects cannot be deleted."""

    def __init__(self, *storage_keys: str) -> None:
        self.storage_keys = set(storage_keys)
        self.asked: list[str] = []

    async def delete(self, trash: TrashedObject) -> None:
        self.asked.append(trash.storage_key)
        if trash.storage_key in self.storage_keys:
            raise StoreError("it cannot be deleted now")


class Keeping:
    """Keeps some blobs."""

    def __init__(self, *blob_ids: str) -> None:
        self.blob_ids = set(blob_ids)

    async def referenced(self, blob_ids: Sequence[str]) -> set[str]:
        return self.blob_ids & set(blob_ids)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_collector, "BATCH_ROWS", 2)


def collector_of(blobs: BlobFixture, objects: Stuck, *keepers: Keeping) -> GarbageCollector:
    return GarbageCollector(blobs.store, objects, every_seconds=1, grace_seconds=0, reference_sources=keepers)  # type: ignore[arg-type]


async def condemn(blobs: BlobFixture, count: int) -> list[str]:
    for n in range(count):
        await blobs.put(f"{n}", f"{n}".encode())
    for n in range(count):
        blobs.bench.clock.advance(seconds=1)
        await blobs.delete(f"{n}")
    return [id_of(f"{n}".encode()) for n in range(count)]


async def test_the_condemned_are_told_behind_one(blobs: BlobFixture) -> None:
    blob_ids = await condemn(blobs, 5)
    assert await blobs.store.run(ListTombstonedBlobs(grace=0, limit=2, after=blob_ids[1])) == blob_ids[2:4]
    assert await blobs.store.run(ListTombstonedBlobs(grace=0, limit=2, after=blob_ids[4])) == []
    assert await blobs.store.run(ListTombstonedBlobs(grace=0, limit=2, after=id_of(b"never there"))) == blob_ids[:2]
    await blobs.put("again", b"3")
    blobs.bench.clock.advance(seconds=1)
    await blobs.delete("again")
    found = await blobs.store.run(ListTombstonedBlobs(grace=0, limit=10))
    assert sorted(found) == sorted(blob_ids), "each comes once"
    behind = [await blobs.store.run(ListTombstonedBlobs(grace=0, limit=10, after=one)) for one in found]
    assert behind == [found[n + 1 :] for n in range(5)]


async def test_the_trash_is_told_behind_a_place(blobs: BlobFixture) -> None:
    for n in (2, 0, 1):
        await blobs.end((await blobs.begin(storage_key=f"place-{n}")).upload.id)
    assert [one.storage_key for one in await blobs.store.run(ListTrash(limit=2, after="place-0"))] == [
        "place-1",
        "place-2",
    ]
    assert await blobs.store.run(ListTrash(limit=2, after="place-2")) == []
    assert len(await blobs.store.run(ListTrash(limit=9, after=""))) == 3


async def test_objects_behind_some_that_cannot_be_deleted_are_deleted(blobs: BlobFixture) -> None:
    for n in range(8):
        await blobs.end((await blobs.begin(storage_key=f"place-{n}")).upload.id)
    stuck = Stuck(*(f"place-{n}" for n in range(5)))
    collector = collector_of(blobs, stuck)
    for _ in range(ROUNDS_MAX):
        await collector.run_once()
    assert await blobs.trash() == sorted(stuck.storage_keys)
    assert len(stuck.asked) < 5 * ROUNDS_MAX, "a store that is down is not asked for everything in each round"
    stuck.storage_keys.clear()
    for _ in range(ROUNDS_MAX):
        await collector.run_once()
    assert await blobs.trash() == []


async def test_blobs_behind_some_that_are_kept_are_collected(blobs: BlobFixture) -> None:
    blob_ids = await condemn(blobs, 8)
    keeping = Keeping(*blob_ids[:5])
    collector = collector_of(blobs, Stuck(), keeping)
    for _ in range(ROUNDS_MAX):
        await collector.run_once()
    assert await blobs.condemned() == set(blob_ids[:5])
    keeping.blob_ids.clear()
    for _ in range(ROUNDS_MAX):
        await collector.run_once()
    assert (await blobs.store.run(GetBlobMetrics())).blobs == 0


async def test_a_keeper_that_cannot_be_asked_keeps_everything(blobs: BlobFixture) -> None:
    class Broken(Keeping):
        async def referenced(self, blob_ids: Sequence[str]) -> set[str]:
            raise OSError("the file cannot be read")

    await condemn(blobs, 1)
    blobs.bench.clock.advance(seconds=1)
    with pytest.raises(OSError, match="cannot be read"):
        await collector_of(blobs, Stuck(), Broken()).run_once()
    assert (await collector_of(blobs, Stuck()).run_once()).blobs == 1
