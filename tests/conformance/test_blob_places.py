"""Places: which of them rows name, and that damage is noted where it was found."""

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
from tests.conformance.depot import Depot, content_of, depot, id_of

__all__ = ["depot"]

DATA = b"12345"
BLOB = id_of(DATA)


async def is_damaged(depot: Depot) -> bool:
    found = await depot.store.run(FindBlob(tenant=depot.tenant, blob_id=BLOB))
    assert found is not None
    return found[0].damaged


# -- damage has a place -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [("place-1", "place-2"), ("place-1", None), (None, "place-2")])
async def test_a_blob_that_was_mended_stays_whole(depot: Depot, before: str | None, after: str | None) -> None:
    store = depot.store
    await depot.put("k", content_of(DATA, before))
    read = (BLOB, before)
    await store.run(RecordScrub(damaged=[read]))
    assert await is_damaged(depot)
    await depot.put("l", content_of(DATA, after))
    depot.bench.clock.advance(seconds=1)
    mended = await store.run(ListBlobsToScrub(before=depot.bench.clock.micros(), limit=5))
    await store.run(RecordScrub(damaged=[read]))
    assert not await is_damaged(depot)
    assert await store.run(ListBlobsToScrub(before=depot.bench.clock.micros(), limit=5)) == mended, "it was not read"
    await store.run(RecordScrub(damaged=[(BLOB, after)]))
    assert await is_damaged(depot)


async def test_a_blob_is_whole_only_where_it_was_read(depot: Depot) -> None:
    await depot.put("k", content_of(DATA, "place-1"))
    await depot.store.run(RecordScrub(damaged=[(BLOB, "place-1")]))
    for other in ("place-2", None):
        await depot.store.run(RecordScrub(intact=[(BLOB, other)]))
        assert await is_damaged(depot)
    await depot.store.run(RecordScrub(intact=[(BLOB, "place-1")]))
    assert not await is_damaged(depot)


async def test_many_are_noted_at_once(depot: Depot) -> None:
    for n in range(6):
        await depot.put(f"{n}", content_of(b"%d" % n, f"place-{n}" if n % 2 else None))
    read = [(id_of(b"%d" % n), f"place-{n}" if n % 2 else None) for n in range(6)]
    await depot.store.run(RecordScrub(intact=read[:3], damaged=read[2:]))
    depot.bench.clock.advance(seconds=1)
    found = await depot.store.run(ListBlobsToScrub(before=depot.bench.clock.micros(), limit=10))
    assert {one.id for one in found if one.damaged} == {id for id, _ in read[2:]}


# -- places that rows name ----------------------------------------------------------------------------------


async def known(depot: Depot) -> set[str]:
    return await depot.store.run(FindKnownStorageKeys(storage_keys=[f"place-{n}" for n in range(1, 9)]))


async def test_a_place_is_known_from_its_upload_until_it_is_forgotten(depot: Depot) -> None:
    assert await known(depot) == set()
    begun = await depot.begin(5, key="k", storage_key="place-1")
    assert await known(depot) == {"place-1"}
    await depot.note(begun.upload.id, begun.epoch, verifying=True)
    assert await known(depot) == {"place-1"}
    await depot.finish(begun.upload.id, content_of(DATA, "place-1"))
    assert await known(depot) == {"place-1"}
    await depot.delete("k")
    assert await known(depot) == {"place-1"}
    assert await depot.store.run(CollectBlob(blob_id=BLOB, grace=0)) == 5
    assert (await depot.trash(), await known(depot)) == (["place-1"], {"place-1"})
    await depot.store.run(ForgetTrash(storage_keys=["place-1"]))
    assert await known(depot) == set()


async def test_those_are_known_that_are_named(depot: Depot) -> None:
    await depot.put("k", content_of(DATA, "place-1"))
    await depot.put("inline", b"inline")
    await depot.begin(5, storage_key="place-2", multipart="parts")
    await depot.begin(5)
    await depot.end((await depot.begin(5, storage_key="place-3")).upload.id)
    failed = await depot.begin(5, storage_key="place-4")
    await depot.end(failed.upload.id, "wrong_digest")
    sealed = await depot.begin(5, storage_key="place-5")
    await depot.finish(sealed.upload.id, content_of(b"sealed", "place-6"))
    assert await known(depot) == {f"place-{n}" for n in range(1, 7)}
    assert await depot.store.run(
        FindKnownStorageKeys(storage_keys=["place-1", "place-1", "nowhere", "", "1", "null"])
    ) == {"place-1"}
    assert await depot.store.run(FindKnownStorageKeys(storage_keys=[])) == set()


async def test_places_of_all_tenants_are_known(depot: Depot) -> None:
    theirs = Depot(depot.bench, (await depot.bench.tenants.create("other")).id)
    await theirs.begin(5, storage_key="place-1")
    await theirs.put("k", content_of(DATA, "place-2"))
    assert await known(depot) == {"place-1", "place-2"}


# -- where the objects are ----------------------------------------------------------------------------------


async def test_a_database_keeps_its_name(depot: Depot) -> None:
    first = await depot.store.run(RegisterObjectStore(store_id="here"))
    assert first.store_id == "here"
    assert len(first.database_id) >= 32
    there = await depot.store.run(RegisterObjectStore(store_id="there"))
    assert (there.store_id, there.database_id) == ("there", first.database_id)
    await depot.begin(5, storage_key="place-1")
    assert await depot.store.run(RegisterObjectStore(store_id="elsewhere")) == there
