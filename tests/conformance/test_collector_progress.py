"""Objects and blobs that cannot be removed now do not stop the collector from removing others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ingot.blobs import garbage_collector
from ingot.blobs.garbage_collector import GarbageCollector
from ingot.blobs.model import TrashedObject
from ingot.blobs.ports import GetBlobMetrics, ListTrash
from ingot.kernel.errors import StoreError
from tests.conformance.blob_fixture import BlobFixture, blobs, id_of

__all__ = ["blobs"]

PASSES_MAX = 10


class FailingObjects:
    """An object store that cannot delete some objects."""

    store_id = "failing"

    def __init__(self, *storage_keys: str) -> None:
        self.storage_keys = set(storage_keys)
        self.attempted: list[str] = []

    async def delete(self, trash: TrashedObject) -> None:
        self.attempted.append(trash.storage_key)
        if trash.storage_key in self.storage_keys:
            raise StoreError("it cannot be deleted now")


class References:
    """A source of references to some blobs."""

    def __init__(self, *blob_ids: str) -> None:
        self.blob_ids = set(blob_ids)

    async def referenced(self, blob_ids: Sequence[str]) -> set[str]:
        return self.blob_ids & set(blob_ids)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_collector, "BATCH_ROWS", 2)


def collector_of(blobs: BlobFixture, objects: FailingObjects, *sources: References) -> GarbageCollector:
    return GarbageCollector(blobs.store, objects, every_seconds=1, grace_seconds=0, reference_sources=sources)  # type: ignore[arg-type]


async def make_tombstoned_blobs(blobs: BlobFixture, count: int) -> list[str]:
    for n in range(count):
        await blobs.put(f"{n}", f"{n}".encode())
    for n in range(count):
        blobs.bench.clock.advance(seconds=1)
        await blobs.delete(f"{n}")
    return [id_of(f"{n}".encode()) for n in range(count)]


async def test_tombstoned_blobs_are_listed_after_a_given_blob(blobs: BlobFixture) -> None:
    blob_ids = await make_tombstoned_blobs(blobs, 5)
    assert await blobs.tombstoned(limit=2, after=blob_ids[1]) == blob_ids[2:4]
    assert await blobs.tombstoned(limit=2, after=blob_ids[4]) == []
    assert await blobs.tombstoned(limit=2, after=id_of(b"never there")) == blob_ids[:2]
    await blobs.put("again", b"3")
    blobs.bench.clock.advance(seconds=1)
    await blobs.delete("again")
    found = await blobs.tombstoned(grace=0, limit=10)
    assert sorted(found) == sorted(blob_ids), "each blob is listed once"
    after_each = [await blobs.tombstoned(limit=10, after=one) for one in found]
    assert after_each == [found[n + 1 :] for n in range(5)]


async def test_the_trash_is_listed_after_a_given_storage_key(blobs: BlobFixture) -> None:
    for n in (2, 0, 1):
        await blobs.end((await blobs.begin(storage_key=f"place-{n}")).upload.id)
    assert [one.storage_key for one in await blobs.store.run(ListTrash(limit=2, after="place-0"))] == [
        "place-1",
        "place-2",
    ]
    assert await blobs.store.run(ListTrash(limit=2, after="place-2")) == []
    assert len(await blobs.store.run(ListTrash(limit=9, after=""))) == 3


async def test_objects_after_undeletable_ones_are_deleted(blobs: BlobFixture) -> None:
    for n in range(8):
        await blobs.end((await blobs.begin(storage_key=f"place-{n}")).upload.id)
    objects = FailingObjects(*(f"place-{n}" for n in range(5)))
    collector = collector_of(blobs, objects)
    for _ in range(PASSES_MAX):
        await collector.run_once()
    assert await blobs.trash() == sorted(objects.storage_keys)
    assert len(objects.attempted) < 5 * PASSES_MAX, "a store that is down is not attempted for everything in each round"
    objects.storage_keys.clear()
    for _ in range(PASSES_MAX):
        await collector.run_once()
    assert await blobs.trash() == []


async def test_blobs_after_referenced_ones_are_collected(blobs: BlobFixture) -> None:
    blob_ids = await make_tombstoned_blobs(blobs, 8)
    references = References(*blob_ids[:5])
    collector = collector_of(blobs, FailingObjects(), references)
    for _ in range(PASSES_MAX):
        await collector.run_once()
    assert await blobs.condemned() == set(blob_ids[:5])
    references.blob_ids.clear()
    for _ in range(PASSES_MAX):
        await collector.run_once()
    assert (await blobs.store.run(GetBlobMetrics())).blobs == 0


async def test_no_blob_is_collected_when_a_reference_source_fails(blobs: BlobFixture) -> None:
    class Broken(References):
        async def referenced(self, blob_ids: Sequence[str]) -> set[str]:
            raise OSError("the file cannot be read")

    await make_tombstoned_blobs(blobs, 1)
    blobs.bench.clock.advance(seconds=1)
    with pytest.raises(OSError, match="cannot be read"):
        await collector_of(blobs, FailingObjects(), Broken()).run_once()
    assert (await collector_of(blobs, FailingObjects()).run_once()).blobs == 1
