"""Maintenance of blobs: when they are collected, and in which order they are scrubbed."""

from __future__ import annotations

from ingot.blobs.ports import (
    CollectBlob,
    ForgetTrash,
    GetBlobMetrics,
    ListBlobsToScrub,
    OpenKey,
    RecordScrub,
)
from ingot.kernel.clock import MICROS
from tests.conformance.blob_fixture import HOUR, BlobFixture, blobs, content_of, id_of, stored

__all__ = ["blobs"]


# -- collecting ---------------------------------------------------------------------------------------------


async def test_a_blob_is_collected_after_the_grace(blobs: BlobFixture) -> None:
    await blobs.put("k", content_of(b"large", "place-1"))
    await blobs.delete("k")
    blobs.bench.clock.advance(seconds=3599)
    assert await blobs.collect() == []
    assert await blobs.store.run(CollectBlob(holder=blobs.tenant, blob_id=id_of(b"large"), grace=HOUR)) is None
    blobs.bench.clock.advance(seconds=2)
    assert await blobs.collect() == [5]
    assert await blobs.trash() == ["place-1"]
    figures = await blobs.store.run(GetBlobMetrics())
    assert (figures.blobs, figures.bytes, figures.tombstones, figures.trash) == (0, 0, 0, 1)
    assert await blobs.store.run(CollectBlob(holder=blobs.tenant, blob_id=id_of(b"large"), grace=HOUR)) is None
    await blobs.store.run(ForgetTrash(storage_keys=["place-1", "never there"]))
    assert await blobs.trash() == []


async def test_the_grace_starts_at_the_newest_tombstone(blobs: BlobFixture) -> None:
    for _ in range(2):
        await blobs.put("k", b"one")
        await blobs.delete("k")
        blobs.bench.clock.advance(seconds=3000)
    assert await blobs.store.run(CollectBlob(holder=blobs.tenant, blob_id=id_of(b"one"), grace=HOUR)) is None
    blobs.bench.clock.advance(seconds=700)
    assert await blobs.store.run(CollectBlob(holder=blobs.tenant, blob_id=id_of(b"one"), grace=HOUR)) == 3


async def test_a_blob_with_a_reference_is_never_collected(blobs: BlobFixture) -> None:
    await blobs.put("a", b"one")
    await blobs.put("b", b"one")
    await blobs.delete("a")
    blobs.bench.clock.advance(seconds=7200)
    assert await blobs.store.run(CollectBlob(holder=blobs.tenant, blob_id=id_of(b"one"), grace=0)) is None
    assert await blobs.read("b") == b"one"


async def test_a_collected_blob_can_be_stored_again(blobs: BlobFixture) -> None:
    for n in range(2):
        await blobs.put("k", content_of(b"large", f"place-{n}"))
        found = await blobs.store.run(OpenKey(tenant=blobs.tenant, key="k"))
        assert found is not None
        assert found[1].storage_key == f"place-{n}"
        await blobs.delete("k")
        blobs.bench.clock.advance(seconds=7200)
        assert await blobs.collect() == [5]
    assert await blobs.trash() == ["place-0", "place-1"]


async def test_tombstoned_blobs_are_listed_oldest_first(blobs: BlobFixture) -> None:
    for data in (b"1", b"2", b"3"):
        await blobs.put(data.decode(), data)
    for data in (b"2", b"3", b"1"):
        blobs.bench.clock.advance(seconds=1)
        await blobs.delete(data.decode())
    found = await blobs.tombstoned(grace=0, limit=2)
    assert found == [id_of(b"2"), id_of(b"3")]


# -- scrubbing ----------------------------------------------------------------------------------------------


async def test_blobs_are_scrubbed_least_recently_verified_first(blobs: BlobFixture) -> None:
    for data in (b"1", b"2", b"3"):
        blobs.bench.clock.advance(seconds=1)
        await blobs.put(data.decode(), data)
    blobs.bench.clock.advance(seconds=1)
    now = blobs.bench.clock.micros()
    found = await blobs.store.run(ListBlobsToScrub(before=now, limit=2))
    assert [stored(one) for one in found] == [content_of(b"1"), content_of(b"2")]
    await blobs.store.run(
        RecordScrub(intact=[(blobs.tenant, id_of(b"1"), None)], damaged=[(blobs.tenant, id_of(b"2"), None)])
    )
    assert [stored(one) for one in await blobs.store.run(ListBlobsToScrub(before=now, limit=2))] == [content_of(b"3")]
    figures = await blobs.store.run(GetBlobMetrics())
    assert (figures.blobs, figures.bytes, figures.damaged) == (3, 3, 1)
    blobs.bench.clock.advance(seconds=1)
    later = await blobs.store.run(ListBlobsToScrub(before=now + MICROS, limit=5))
    assert {one.id: one.damaged for one in later} == {
        id_of(b"3"): False,
        id_of(b"1"): False,
        id_of(b"2"): True,
    }
    await blobs.store.run(RecordScrub(intact=[(blobs.tenant, id_of(b"2"), None)]))
    assert (await blobs.store.run(GetBlobMetrics())).damaged == 0


async def test_a_put_of_the_same_bytes_repairs_a_damaged_blob(blobs: BlobFixture) -> None:
    await blobs.put("a", content_of(b"large", "place-1"))
    await blobs.store.run(RecordScrub(damaged=[(blobs.tenant, id_of(b"large"), "place-1")]))
    found = await blobs.store.run(OpenKey(tenant=blobs.tenant, key="a"))
    assert found is not None
    assert found[1].damaged
    await blobs.put("b", content_of(b"large", "place-2"))
    for key in ("a", "b"):
        found = await blobs.store.run(OpenKey(tenant=blobs.tenant, key=key))
        assert found is not None
        assert stored(found[1]) == content_of(b"large", "place-2")
    assert await blobs.trash() == ["place-1"]
    assert (await blobs.store.run(GetBlobMetrics())).damaged == 0


async def test_a_put_of_the_same_bytes_repairs_damage_between_inline_and_object(blobs: BlobFixture) -> None:
    for before, after in (("place-1", None), (None, "place-2"), (None, None)):
        data = f"{before} and {after}".encode()
        await blobs.put(f"{before}", content_of(data, before), if_match="*")
        await blobs.store.run(RecordScrub(damaged=[(blobs.tenant, id_of(data), before)]))
        await blobs.put(f"{before}", content_of(data, after), if_match="*")
        found = await blobs.store.run(OpenKey(tenant=blobs.tenant, key=f"{before}"))
        assert found is not None
        assert stored(found[1]) == content_of(data, after)
