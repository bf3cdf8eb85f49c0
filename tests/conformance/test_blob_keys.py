"""Keys: set, read, listed, deleted and purged in their tenant."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from itertools import pairwise

import pytest

from ingot.blobs.errors import KeyChanged, KeyExists, KeyNotFound, QuotaExceeded
from ingot.blobs.model import BlobEventData
from ingot.blobs.ports import (
    DeleteKey,
    FindBlob,
    GetBlobMetrics,
    GetKey,
    GetUpload,
    GetUsage,
    ListKeys,
    OpenKey,
    PreviewPurge,
    PurgeKeys,
    PutBlob,
)
from ingot.events.audit import Act
from ingot.identity import TenantNotFound
from ingot.identity.ports import ClearTenants
from ingot.kernel.errors import IngotError
from ingot.kernel.ids import new_id
from tests.conformance.blob_fixture import OWNER, BlobFixture, blobs, content_of, id_of, stored

__all__ = ["blobs"]

ALL_IN_ORDER = ["a", "a/", "a/b", "a/b/c", "a/é", "a/\ud7ff", "a/\ue000", "a/\uffff", "a/😀", "a/\U0010ffff", "a0", "b"]


# -- setting and reading ------------------------------------------------------------------------------------


async def test_a_put_key_can_be_read(blobs: BlobFixture) -> None:
    key = await blobs.put("a/b.txt", b"hello", content_type="text/plain", original_name="b.txt")
    content = content_of(b"hello")
    assert (key.key, key.blob_id, key.sha256, key.size) == ("a/b.txt", content.id, content.sha256, 5)
    assert (key.content_type, key.original_name, key.owner) == ("text/plain", "b.txt", OWNER)
    assert key.uploaded_at == blobs.bench.clock.now()
    assert await blobs.store.run(GetKey(tenant=blobs.tenant, key="a/b.txt")) == key
    found = await blobs.store.run(OpenKey(tenant=blobs.tenant, key="a/b.txt"))
    assert found is not None
    assert (found[0], stored(found[1])) == (key, content)
    assert await blobs.usage() == (5, 0, 1)


@pytest.mark.parametrize("data", [b"", b"\x00\xff" * 10])
async def test_bytes_are_stored_unchanged(blobs: BlobFixture, data: bytes) -> None:
    await blobs.put("k", data)
    assert await blobs.read("k") == data


async def test_a_key_of_an_object_returns_its_storage_key_and_checksums(blobs: BlobFixture) -> None:
    content = content_of(b"large", "place-1")
    await blobs.put("k", content)
    found = await blobs.store.run(OpenKey(tenant=blobs.tenant, key="k"))
    assert found is not None
    assert stored(found[1]) == content


async def test_a_missing_key_is_not_found(blobs: BlobFixture) -> None:
    assert await blobs.store.run(GetKey(tenant=blobs.tenant, key="k")) is None
    assert await blobs.store.run(OpenKey(tenant=blobs.tenant, key="k")) is None
    for if_match in (None, "*", id_of(b"x")):
        with pytest.raises(KeyNotFound):
            await blobs.delete("k", if_match)


async def test_a_key_is_replaced_only_with_if_match(blobs: BlobFixture) -> None:
    await blobs.put("k", b"one")
    with pytest.raises(KeyExists, match="the key 'k' already"):
        await blobs.put("k", b"two")
    with pytest.raises(KeyExists):
        await blobs.put("k", b"one")
    with pytest.raises(KeyChanged):
        await blobs.put("k", b"two", if_match=id_of(b"two"))
    assert await blobs.read("k") == b"one"
    await blobs.put("k", b"three", if_match=id_of(b"one"))
    await blobs.put("k", b"fourth", if_match="*")
    assert await blobs.read("k") == b"fourth"
    assert await blobs.usage() == (6, 0, 1)


async def test_a_missing_key_does_not_match_a_blob_id_in_if_match(blobs: BlobFixture) -> None:
    with pytest.raises(KeyChanged):
        await blobs.put("k", b"two", if_match=id_of(b"one"))
    await blobs.put("k", b"two", if_match="*")
    assert await blobs.read("k") == b"two"


async def test_only_one_of_eight_concurrent_puts_sets_a_key(blobs: BlobFixture) -> None:
    commands = [
        PutBlob(id=new_id(), tenant=blobs.tenant, owner=OWNER, key="k", content=content_of(bytes([n]) * n))
        for n in range(1, 9)
    ]
    answers = await asyncio.gather(*map(blobs.store.run, commands), return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in answers) == ["Key", *["KeyExists"] * 7]
    await blobs.check()


async def test_a_repeated_put_returns_the_same_key(blobs: BlobFixture) -> None:
    id = new_id()
    first = await blobs.put("k", b"one", id=id)
    blobs.bench.clock.advance(seconds=1)
    assert await blobs.put("k", b"one", id=id) == first
    assert len(await blobs.news("blob.stored")) == 1
    with pytest.raises(KeyExists):
        await blobs.put("k", b"two", id=id)
    assert await blobs.usage() == (3, 0, 1)


async def test_a_repeated_put_keeps_its_object(blobs: BlobFixture) -> None:
    id = new_id()
    for _ in range(2):
        await blobs.put("k", content_of(b"large", "place-1"), id=id)
    assert await blobs.trash() == []


async def test_every_key_counts_toward_usage_even_for_the_same_blob(blobs: BlobFixture) -> None:
    await blobs.put("a", b"12345")
    await blobs.put("b", b"12345", owner="token:bob")
    assert (await blobs.usage(), await blobs.usage(OWNER)) == ((10, 0, 2), (5, 0, 1))
    await blobs.put("a", b"123", if_match="*", owner="token:bob")
    assert (await blobs.usage(OWNER), await blobs.usage("token:bob")) == ((0, 0, 0), (8, 0, 2))


async def test_a_key_beyond_the_quota_is_refused(blobs: BlobFixture) -> None:
    await blobs.limit(10)
    await blobs.put("a", b"1234567")
    with pytest.raises(QuotaExceeded) as refused:
        await blobs.put("b", b"1234")
    assert (refused.value.scope, refused.value.usage, refused.value.limit) == ("tenant", 7, 10)
    with pytest.raises(QuotaExceeded) as refused:
        await blobs.put("b", b"12", owner_quota=8)
    assert (refused.value.scope, refused.value.usage, refused.value.limit) == ("token", 7, 8)
    await blobs.put("b", b"12", owner="token:bob", owner_quota=8)
    await blobs.put("c", b"1")
    assert (await blobs.store.run(GetUsage(tenant=blobs.tenant))).quota_bytes == 10
    assert await blobs.condemned() == set()


async def test_concurrent_puts_never_exceed_the_quota(blobs: BlobFixture) -> None:
    await blobs.limit(50)
    commands = [
        PutBlob(id=new_id(), tenant=blobs.tenant, owner=OWNER, key=f"k{n}", content=content_of(bytes([n]) * 10))
        for n in range(8)
    ]
    answers = await asyncio.gather(*map(blobs.store.run, commands), return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in answers) == ["Key"] * 5 + ["QuotaExceeded"] * 3
    await blobs.check()
    assert await blobs.usage() == (50, 0, 5)


# -- deleting -----------------------------------------------------------------------------------------------


async def test_a_deleted_key_is_unreadable_at_once_and_frees_its_usage(blobs: BlobFixture) -> None:
    key = await blobs.put("k", b"one")
    assert await blobs.delete("k") == key
    assert await blobs.store.run(OpenKey(tenant=blobs.tenant, key="k")) is None
    assert await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=key.blob_id)) is None
    assert await blobs.keys() == []
    with pytest.raises(KeyNotFound):
        await blobs.delete("k")
    assert await blobs.usage() == (0, 0, 0)
    assert await blobs.condemned() == {key.blob_id}


async def test_only_one_of_eight_concurrent_deletes_removes_a_key(blobs: BlobFixture) -> None:
    await blobs.put("k", b"one")
    commands = [DeleteKey(tenant=blobs.tenant, key="k") for _ in range(8)]
    answers = await asyncio.gather(*map(blobs.store.run, commands), return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in answers) == ["Key", *["KeyNotFound"] * 7]
    await blobs.check()
    assert len(await blobs.news("blob.deleted")) == 1


async def test_a_conditional_delete_requires_the_named_blob(blobs: BlobFixture) -> None:
    await blobs.put("k", b"one")
    with pytest.raises(KeyChanged):
        await blobs.delete("k", id_of(b"two"))
    assert await blobs.read("k") == b"one"
    await blobs.delete("k", id_of(b"one"))


async def test_a_key_set_again_removes_the_tombstone(blobs: BlobFixture) -> None:
    await blobs.put("k", content_of(b"one", "place-1"))
    await blobs.delete("k")
    await blobs.put("k", content_of(b"one", "place-2"))
    assert await blobs.condemned() == set()
    assert await blobs.deleted() == 3, "the second object waits to be deleted"
    blobs.bench.clock.advance(seconds=7200)
    assert await blobs.collect() == []
    found = await blobs.store.run(OpenKey(tenant=blobs.tenant, key="k"))
    assert found is not None
    assert found[1].storage_key == "place-1"
    assert await blobs.trash() == ["place-2"]
    await blobs.delete("k")
    assert await blobs.collect() == []
    blobs.bench.clock.advance(seconds=7200)
    assert await blobs.collect() == [3]


async def test_events_report_stored_and_deleted_blobs(blobs: BlobFixture) -> None:
    await blobs.put("k", b"one", content_type="text/plain")
    await blobs.put("k", b"two", if_match="*")
    await blobs.delete("k")
    one = BlobEventData(blob_id=id_of(b"one"), size=3, key="k", content_type="text/plain")
    two = BlobEventData(blob_id=id_of(b"two"), size=3, key="k", content_type="application/octet-stream")
    assert await blobs.news("blob.stored") == [one, two]
    assert await blobs.news("blob.deleted") == [two]


async def test_refused_calls_publish_no_events(blobs: BlobFixture) -> None:
    await blobs.put("k", b"one")
    before = await blobs.bench.event_names()
    for call in (
        blobs.put("k", b"two"),
        blobs.put("k", b"two", if_match=id_of(b"two")),
        blobs.put("j", b"two", owner_quota=1),
        blobs.delete("k", id_of(b"two")),
        blobs.delete("j"),
    ):
        with pytest.raises(IngotError):
            await call
    assert await blobs.bench.event_names() == before
    assert (await blobs.store.run(GetBlobMetrics())).blobs == 1


# -- purging ------------------------------------------------------------------------------------------------


async def test_a_purge_deletes_the_keys_of_an_owner_up_to_its_limit(blobs: BlobFixture) -> None:
    for n in range(5):
        await blobs.put(f"ann/{n}", bytes([n]) * 2)
    await blobs.put("bob", b"bob's", owner="token:bob")
    assert (await blobs.store.run(PreviewPurge(tenant=blobs.tenant, owner=OWNER))).bytes == 10
    act = Act(who="token:operator")
    first = await blobs.store.run(PurgeKeys(tenant=blobs.tenant, owner=OWNER, limit=3, act=act))
    assert (first.keys, first.bytes, first.more) == (3, 6, True)
    await blobs.check()
    second = await blobs.store.run(PurgeKeys(tenant=blobs.tenant, owner=OWNER, limit=3, act=Act()))
    assert (second.keys, second.bytes, second.more) == (2, 4, False)
    await blobs.check()
    assert await blobs.keys() == ["bob"]
    assert len(await blobs.news("blob.deleted")) == 5
    entries = (await blobs.bench.audit.list(blobs.tenant, action="keys.purged")).items
    assert [entry.who for entry in entries] == ["process", "token:operator"]


async def test_a_purge_without_an_owner_deletes_all_keys(blobs: BlobFixture) -> None:
    await blobs.put("ann", b"ann's")
    await blobs.put("bob", b"bob's!", owner="token:bob")
    preview = await blobs.store.run(PreviewPurge(tenant=blobs.tenant, owner=None))
    assert (preview.keys, preview.bytes) == (2, 11)
    purged = await blobs.store.run(PurgeKeys(tenant=blobs.tenant, owner=None, limit=10, act=Act()))
    assert (purged.keys, purged.bytes, purged.more) == (2, 11, False)
    await blobs.check()
    assert len(await blobs.condemned()) == 2


# -- listing ------------------------------------------------------------------------------------------------


async def test_keys_are_listed_in_the_order_of_their_bytes(blobs: BlobFixture) -> None:
    assert all(one.encode() < other.encode() for one, other in pairwise(ALL_IN_ORDER))
    for key in random.Random(7).sample(ALL_IN_ORDER, len(ALL_IN_ORDER)):
        await blobs.put(key, b"same")
    for prefix in ("", "a", "a/", "a/b", "a/\ud7ff", "a/\U0010ffff", "\U0010ffff", "b", "c"):
        assert await blobs.keys(prefix) == [key for key in ALL_IN_ORDER if key.startswith(prefix)]


async def test_a_list_continues_after_any_text(blobs: BlobFixture) -> None:
    for key in ALL_IN_ORDER:
        await blobs.put(key, b"same")
    for after in ("", "A", "a", "a/b/", "a/c", "zz"):
        for prefix in ("", "a/", "a/b"):
            page = await blobs.store.run(ListKeys(tenant=blobs.tenant, prefix=prefix, after=after, limit=3))
            expected = [key for key in ALL_IN_ORDER if key.startswith(prefix) and key > after][:3]
            assert [key.key for key in page] == expected, (prefix, after)


# -- tenants ------------------------------------------------------------------------------------------------


async def test_the_same_bytes_of_two_tenants_are_two_blobs(blobs: BlobFixture) -> None:
    other = BlobFixture(blobs.bench, (await blobs.bench.tenants.create("other")).id)
    await blobs.put("k", content_of(b"same", "place-1"))
    assert await blobs.trash() == []
    await other.put("k", content_of(b"same", "place-2"))
    assert await blobs.trash() == []
    assert (await blobs.store.run(GetBlobMetrics())).blobs == 2
    assert (await blobs.usage(), await other.usage()) == ((4, 0, 1), (4, 0, 1))
    for one, storage_key in ((blobs, "place-1"), (other, "place-2")):
        opened = await one.store.run(OpenKey(tenant=one.tenant, key="k"))
        assert opened is not None
        assert (opened[1].storage_key, opened[1].tenant) == (storage_key, one.tenant)
    assert await blobs.references(id_of(b"same")) == 2
    await blobs.delete("k")
    blobs.bench.clock.advance(seconds=7200)
    assert await blobs.collect() == [4]
    assert await blobs.trash() == ["place-1"]
    assert await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=id_of(b"same"))) is None
    found = await other.store.run(FindBlob(tenant=other.tenant, blob_id=id_of(b"same")))
    assert found is not None
    assert (found[0].storage_key, [(one.kind, one.name) for one in found[1]]) == ("place-2", [("key", "k")])


async def test_a_tenant_cannot_see_keys_of_another_tenant(blobs: BlobFixture) -> None:
    other = BlobFixture(blobs.bench, (await blobs.bench.tenants.create("other")).id)
    await blobs.put("k", b"one")
    assert await other.keys() == []
    assert await other.store.run(GetKey(tenant=other.tenant, key="k")) is None
    assert await other.store.run(FindBlob(tenant=other.tenant, blob_id=id_of(b"one"))) is None
    with pytest.raises(KeyNotFound):
        await other.delete("k")
    await other.put("k", b"another")
    assert await blobs.read("k") == b"one"
    purged = await other.store.run(PurgeKeys(tenant=other.tenant, owner=None, limit=10, act=Act()))
    assert purged.keys == 1
    assert await blobs.read("k") == b"one"
    assert await other.bench.event_names(other.tenant) == ["blob.stored", "blob.deleted"]


async def test_key_commands_of_a_missing_tenant_are_refused(blobs: BlobFixture) -> None:
    missing_tenant, store = new_id(), blobs.store
    for call in (
        lambda: store.run(PutBlob(id=new_id(), tenant=missing_tenant, owner=OWNER, key="k", content=content_of(b""))),
        lambda: store.run(DeleteKey(tenant=missing_tenant, key="k")),
        lambda: store.run(PurgeKeys(tenant=missing_tenant, owner=None, limit=1, act=Act())),
    ):
        with pytest.raises(TenantNotFound):
            await call()
    assert (await store.run(GetBlobMetrics())).blobs == 0


async def test_blobs_of_a_removed_tenant_are_collected(blobs: BlobFixture) -> None:
    removed = BlobFixture(blobs.bench, (await blobs.bench.tenants.create("removed")).id)
    for n in range(5):
        await removed.put(f"k{n}", content_of(bytes([n]), f"place-{n}"))
    await removed.begin(10, storage_key="half")
    done = await removed.begin(10)
    await removed.finish(done.upload.id, b"uploaded")
    await blobs.put("k", content_of(bytes([0]), "other"))
    await blobs.bench.tenants.remove(removed.tenant)
    while (await blobs.bench.store.run(ClearTenants(limit=3))).has_more:
        pass
    blobs.bench.clock.advance(seconds=7200)
    assert sorted(await blobs.collect()) == [1, 1, 1, 1, 1, 8]
    assert await blobs.trash() == ["half", "place-0", "place-1", "place-2", "place-3", "place-4"]
    assert await blobs.keys() == ["k"]
    figures = await blobs.store.run(GetBlobMetrics())
    assert (figures.blobs, figures.bytes, figures.uploads, figures.tombstones) == (1, 1, 0, 0)


# -- all together -------------------------------------------------------------------------------------------


async def test_usage_equals_a_recount_after_random_calls(blobs: BlobFixture) -> None:
    chance = random.Random(11)
    other = BlobFixture(blobs.bench, (await blobs.bench.tenants.create("other")).id)
    for one in (blobs, other):
        await one.limit(60)
    for _ in range(150):
        one = chance.choice([blobs, other])
        with suppress(IngotError):
            await _make_random_call(one, chance)
    await blobs.check()
    await other.check()
    assert len(await blobs.news("quota.warning")) > 0
    blobs.bench.clock.advance(days=1)
    while await blobs.sweep():
        pass
    for one in (blobs, other):
        await one.store.run(PurgeKeys(tenant=one.tenant, owner=None, limit=100, act=Act()))
        assert await one.usage() == (0, 0, 0)
    blobs.bench.clock.advance(days=1)
    await blobs.collect(limit=1000)
    figures = await blobs.store.run(GetBlobMetrics())
    assert (figures.blobs, figures.bytes, figures.tombstones, figures.uploads) == (0, 0, 0, 0)


async def _make_random_call(blobs: BlobFixture, chance: random.Random) -> None:
    """Make one random call, which may be refused."""
    key, data = chance.choice("abc"), bytes([chance.randrange(6)]) * chance.randrange(1, 25)
    owner, quota = chance.choice([OWNER, "token:bob"]), chance.choice([None, 30])
    storage_key = chance.choice([None, new_id()])
    upload = chance.choice([*sorted(blobs.begun), "none"])
    found = await blobs.store.run(GetUpload(tenant=blobs.tenant, id=upload))
    match chance.randrange(10):
        case 0 | 1:
            await blobs.put(key, content_of(data, storage_key), owner=owner, owner_quota=quota, if_match="*")
        case 2:
            await blobs.delete(key)
        case 3 | 4:
            await blobs.begin(
                chance.randrange(30),
                owner=owner,
                owner_quota=quota,
                key=chance.choice([None, key]),
                storage_key=new_id(),
            )
        case 5 if found is not None:
            await blobs.note(upload, found.epoch, reserved=chance.randrange(30), owner_quota=quota)
        case 6 | 7 if found is not None:
            await blobs.finish(upload, content_of(data, storage_key or found.storage_key), owner_quota=quota)
        case 8:
            await blobs.end(upload, chance.choice([None, "wrong_digest"]))
        case _:
            blobs.bench.clock.advance(seconds=chance.choice([1, 1800]))
            await blobs.sweep()
            await blobs.collect()
