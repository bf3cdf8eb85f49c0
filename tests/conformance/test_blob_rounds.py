"""Rounds over blobs: what is collected when, and what is read back in which order."""

from __future__ import annotations

from ingot.blobs.ports import (
    CollectBlob,
    ForgetTrash,
    GetBlobMetrics,
    ListBlobsToScrub,
    ListTombstonedBlobs,
    OpenKey,
    RecordScrub,
)
from ingot.kernel.clock import MICROS
from tests.conformance.depot import HOUR, Depot, content_of, depot, id_of

__all__ = ["depot"]


# -- collecting ---------------------------------------------------------------------------------------------


async def test_a_blob_is_collected_when_the_grace_is_over(depot: Depot) -> None:
    await depot.put("k", content_of(b"large", "place-1"))
    await depot.delete("k")
    depot.bench.clock.advance(seconds=3599)
    assert await depot.collect() == []
    assert await depot.store.run(CollectBlob(blob_id=id_of(b"large"), grace=HOUR)) is None
    depot.bench.clock.advance(seconds=2)
    assert await depot.collect() == [5]
    assert await depot.trash() == ["place-1"]
    figures = await depot.store.run(GetBlobMetrics())
    assert (figures.blobs, figures.bytes, figures.tombstones, figures.trash) == (0, 0, 0, 1)
    assert await depot.store.run(CollectBlob(blob_id=id_of(b"large"), grace=HOUR)) is None
    await depot.store.run(ForgetTrash(storage_keys=["place-1", "never there"]))
    assert await depot.trash() == []


async def test_the_youngest_tombstone_counts(depot: Depot) -> None:
    for _ in range(2):
        await depot.put("k", b"one")
        await depot.delete("k")
        depot.bench.clock.advance(seconds=3000)
    assert await depot.store.run(CollectBlob(blob_id=id_of(b"one"), grace=HOUR)) is None
    depot.bench.clock.advance(seconds=700)
    assert await depot.store.run(CollectBlob(blob_id=id_of(b"one"), grace=HOUR)) == 3


async def test_a_blob_with_a_reference_is_never_collected(depot: Depot) -> None:
    await depot.put("a", b"one")
    await depot.put("b", b"one")
    await depot.delete("a")
    depot.bench.clock.advance(seconds=7200)
    assert await depot.store.run(CollectBlob(blob_id=id_of(b"one"), grace=0)) is None
    assert await depot.read("b") == b"one"


async def test_a_blob_that_was_collected_can_come_again(depot: Depot) -> None:
    for n in range(2):
        await depot.put("k", content_of(b"large", f"place-{n}"))
        found = await depot.store.run(OpenKey(tenant=depot.tenant, key="k"))
        assert found is not None
        assert found[1].storage_key == f"place-{n}"
        await depot.delete("k")
        depot.bench.clock.advance(seconds=7200)
        assert await depot.collect() == [5]
    assert await depot.trash() == ["place-0", "place-1"]


async def test_those_that_were_condemned_first_are_told_first(depot: Depot) -> None:
    for data in (b"1", b"2", b"3"):
        await depot.put(data.decode(), data)
    for data in (b"2", b"3", b"1"):
        depot.bench.clock.advance(seconds=1)
        await depot.delete(data.decode())
    found = await depot.store.run(ListTombstonedBlobs(grace=0, limit=2))
    assert found == [id_of(b"2"), id_of(b"3")]


# -- scrubbing ----------------------------------------------------------------------------------------------


async def test_those_that_were_not_looked_at_for_longest_come_first(depot: Depot) -> None:
    for data in (b"1", b"2", b"3"):
        depot.bench.clock.advance(seconds=1)
        await depot.put(data.decode(), data)
    depot.bench.clock.advance(seconds=1)
    now = depot.bench.clock.micros()
    found = await depot.store.run(ListBlobsToScrub(before=now, limit=2))
    assert found == [content_of(b"1"), content_of(b"2")]
    await depot.store.run(RecordScrub(intact=[(id_of(b"1"), None)], damaged=[(id_of(b"2"), None)]))
    assert await depot.store.run(ListBlobsToScrub(before=now, limit=2)) == [content_of(b"3")]
    figures = await depot.store.run(GetBlobMetrics())
    assert (figures.blobs, figures.bytes, figures.damaged) == (3, 3, 1)
    depot.bench.clock.advance(seconds=1)
    later = await depot.store.run(ListBlobsToScrub(before=now + MICROS, limit=5))
    assert {one.id: one.damaged for one in later} == {
        id_of(b"3"): False,
        id_of(b"1"): False,
        id_of(b"2"): True,
    }
    await depot.store.run(RecordScrub(intact=[(id_of(b"2"), None)]))
    assert (await depot.store.run(GetBlobMetrics())).damaged == 0


async def test_damaged_bytes_are_healed_by_the_same_upload(depot: Depot) -> None:
    await depot.put("a", content_of(b"large", "place-1"))
    await depot.store.run(RecordScrub(damaged=[(id_of(b"large"), "place-1")]))
    found = await depot.store.run(OpenKey(tenant=depot.tenant, key="a"))
    assert found is not None
    assert found[1].damaged
    await depot.put("b", content_of(b"large", "place-2"))
    for key in ("a", "b"):
        found = await depot.store.run(OpenKey(tenant=depot.tenant, key=key))
        assert found is not None
        assert found[1] == content_of(b"large", "place-2")
    assert await depot.trash() == ["place-1"]
    assert (await depot.store.run(GetBlobMetrics())).damaged == 0


async def test_damaged_bytes_are_healed_inline_too(depot: Depot) -> None:
    for before, after in (("place-1", None), (None, "place-2"), (None, None)):
        data = f"{before} and {after}".encode()
        await depot.put(f"{before}", content_of(data, before), if_match="*")
        await depot.store.run(RecordScrub(damaged=[(id_of(data), before)]))
        await depot.put(f"{before}", content_of(data, after), if_match="*")
        found = await depot.store.run(OpenKey(tenant=depot.tenant, key=f"{before}"))
        assert found is not None
        assert found[1] == content_of(data, after)
