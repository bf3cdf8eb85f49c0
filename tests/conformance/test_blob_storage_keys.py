"""Storage keys: which ones rows name, and that damage is recorded for the storage key where it was found."""

from __future__ import annotations

import pytest

from ingot.blobs.ports import (
    CollectBlob,
    FindBlob,
    FindKnownStorageKeys,
    ForgetTrash,
    ListBlobsToScrub,
    RecordScrub,
    RegisterObjectStore,
)
from tests.conformance.blob_fixture import BlobFixture, blobs, content_of, id_of

__all__ = ["blobs"]

DATA = b"12345"
BLOB = id_of(DATA)


async def is_damaged(blobs: BlobFixture) -> bool:
    found = await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=BLOB))
    assert found is not None
    return found[0].damaged


# -- damage belongs to a storage key ------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [("place-1", "place-2"), ("place-1", None), (None, "place-2")])
async def test_late_damage_of_the_old_storage_key_does_not_mark_a_repaired_blob(
    blobs: BlobFixture, before: str | None, after: str | None
) -> None:
    store = blobs.store
    await blobs.put("k", content_of(DATA, before))
    read = (blobs.tenant, BLOB, before)
    await store.run(RecordScrub(damaged=[read]))
    assert await is_damaged(blobs)
    await blobs.put("l", content_of(DATA, after))
    blobs.bench.clock.advance(seconds=1)
    mended = await store.run(ListBlobsToScrub(before=blobs.bench.clock.micros(), limit=5))
    await store.run(RecordScrub(damaged=[read]))
    assert not await is_damaged(blobs)
    assert await store.run(ListBlobsToScrub(before=blobs.bench.clock.micros(), limit=5)) == mended, "it was not read"
    await store.run(RecordScrub(damaged=[(blobs.tenant, BLOB, after)]))
    assert await is_damaged(blobs)


async def test_a_blob_becomes_intact_only_through_its_own_storage_key(blobs: BlobFixture) -> None:
    await blobs.put("k", content_of(DATA, "place-1"))
    await blobs.store.run(RecordScrub(damaged=[(blobs.tenant, BLOB, "place-1")]))
    for other in ("place-2", None):
        await blobs.store.run(RecordScrub(intact=[(blobs.tenant, BLOB, other)]))
        assert await is_damaged(blobs)
    await blobs.store.run(RecordScrub(intact=[(blobs.tenant, BLOB, "place-1")]))
    assert not await is_damaged(blobs)


async def test_one_call_records_many_scrubbed_blobs(blobs: BlobFixture) -> None:
    for n in range(6):
        await blobs.put(f"{n}", content_of(b"%d" % n, f"place-{n}" if n % 2 else None))
    read = [(blobs.tenant, id_of(b"%d" % n), f"place-{n}" if n % 2 else None) for n in range(6)]
    await blobs.store.run(RecordScrub(intact=read[:3], damaged=read[2:]))
    blobs.bench.clock.advance(seconds=1)
    found = await blobs.store.run(ListBlobsToScrub(before=blobs.bench.clock.micros(), limit=10))
    assert {one.id for one in found if one.damaged} == {id for _, id, _ in read[2:]}


# -- storage keys that rows name ----------------------------------------------------------------------------


async def known_storage_keys(blobs: BlobFixture) -> set[str]:
    return await blobs.store.run(FindKnownStorageKeys(storage_keys=[f"place-{n}" for n in range(1, 9)]))


async def test_a_storage_key_is_known_from_its_upload_until_its_trash_is_forgotten(blobs: BlobFixture) -> None:
    assert await known_storage_keys(blobs) == set()
    begun = await blobs.begin(5, key="k", storage_key="place-1")
    assert await known_storage_keys(blobs) == {"place-1"}
    await blobs.note(begun.upload.id, begun.epoch, verifying=True)
    assert await known_storage_keys(blobs) == {"place-1"}
    await blobs.finish(begun.upload.id, content_of(DATA, "place-1"))
    assert await known_storage_keys(blobs) == {"place-1"}
    await blobs.delete("k")
    assert await known_storage_keys(blobs) == {"place-1"}
    assert await blobs.store.run(CollectBlob(holder=blobs.tenant, blob_id=BLOB, grace=0)) == 5
    assert (await blobs.trash(), await known_storage_keys(blobs)) == (["place-1"], {"place-1"})
    await blobs.store.run(ForgetTrash(storage_keys=["place-1"]))
    assert await known_storage_keys(blobs) == set()


async def test_storage_keys_named_by_any_row_are_known(blobs: BlobFixture) -> None:
    await blobs.put("k", content_of(DATA, "place-1"))
    await blobs.put("inline", b"inline")
    await blobs.begin(5, storage_key="place-2", multipart="parts")
    await blobs.begin(5)
    await blobs.end((await blobs.begin(5, storage_key="place-3")).upload.id)
    failed = await blobs.begin(5, storage_key="place-4")
    await blobs.end(failed.upload.id, "wrong_digest")
    sealed = await blobs.begin(5, storage_key="place-5")
    await blobs.finish(sealed.upload.id, content_of(b"sealed", "place-6"))
    assert await known_storage_keys(blobs) == {f"place-{n}" for n in range(1, 7)}
    assert await blobs.store.run(
        FindKnownStorageKeys(storage_keys=["place-1", "place-1", "nowhere", "", "1", "null"])
    ) == {"place-1"}
    assert await blobs.store.run(FindKnownStorageKeys(storage_keys=[])) == set()


async def test_storage_keys_of_all_tenants_are_known(blobs: BlobFixture) -> None:
    other = BlobFixture(blobs.bench, (await blobs.bench.tenants.create("other")).id)
    await other.begin(5, storage_key="place-1")
    await other.put("k", content_of(DATA, "place-2"))
    assert await known_storage_keys(blobs) == {"place-1", "place-2"}


# -- the object store of a database -------------------------------------------------------------------------


async def test_a_database_keeps_its_id_and_the_object_store_once_used(blobs: BlobFixture) -> None:
    first = await blobs.store.run(RegisterObjectStore(store_id="here"))
    assert first.store_id == "here"
    assert len(first.database_id) >= 32
    there = await blobs.store.run(RegisterObjectStore(store_id="there"))
    assert (there.store_id, there.database_id) == ("there", first.database_id)
    await blobs.begin(5, storage_key="place-1")
    assert await blobs.store.run(RegisterObjectStore(store_id="elsewhere")) == there
