"""Deleted bytes count against the quota until they are gone, and a client that sends them late is noticed."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from ingot.blobs.errors import QuotaExceeded
from ingot.blobs.model import GRACE_MICROS
from ingot.blobs.ports import GetUsage, PurgeKeys, PutBlob, RegisterObjectStore
from ingot.events.audit import Act
from ingot.kernel.clock import MICROS
from ingot.kernel.ids import new_id
from tests.conformance.blob_fixture import HOUR, OWNER, BlobFixture, blobs, content_of, id_of

__all__ = ["blobs"]

GRACE = timedelta(microseconds=GRACE_MICROS)


async def test_puts_and_deletes_in_a_loop_stay_within_the_quota(blobs: BlobFixture) -> None:
    await blobs.limit(10)
    began = blobs.bench.clock.now()
    for n in range(2):
        await blobs.put("k", b"%04d" % n)
        await blobs.delete("k")
        blobs.bench.clock.advance(seconds=60)
    with pytest.raises(QuotaExceeded) as raised:
        await blobs.put("k", b"0003")
    error = raised.value
    assert (error.usage, error.limit, error.requested, error.deleted) == (8, 10, 4, 8)
    assert error.freed == (began + GRACE, began + timedelta(seconds=60) + GRACE)
    assert error.members["deleted_bytes"] == 8
    assert "8 of them belong to deleted files and become free between" in str(error.detail)
    assert "collect --now" in (error.hint or "")
    blobs.bench.clock.advance(seconds=3600 - 120)
    assert await blobs.collect() == [4]
    await blobs.put("k", b"0003")


async def test_a_replaced_blob_counts_until_it_is_collected(blobs: BlobFixture) -> None:
    await blobs.limit(10)
    await blobs.put("k", b"0001")
    await blobs.put("k", b"0002", if_match="*")
    assert (await blobs.usage(), await blobs.deleted()) == ((4, 0, 1), 4)
    with pytest.raises(QuotaExceeded):
        await blobs.put("k", b"0003", if_match="*")
    await blobs.put("k", b"0002", if_match="*")
    assert await blobs.deleted() == 4, "the same bytes replace nothing"
    assert await blobs.collect(grace=0) == [4]
    await blobs.put("k", b"0003", if_match="*")


async def test_bytes_with_another_key_are_not_deleted(blobs: BlobFixture) -> None:
    await blobs.limit(10)
    for key in ("k", "l"):
        await blobs.put(key, b"0001")
    await blobs.put("k", b"0002", if_match="*")
    assert (await blobs.usage(), await blobs.deleted()) == ((8, 0, 2), 0)
    await blobs.delete("l")
    assert (await blobs.usage(), await blobs.deleted()) == ((4, 0, 1), 4)


async def test_deleted_bytes_can_be_stored_again_in_a_full_quota(blobs: BlobFixture) -> None:
    await blobs.limit(4)
    await blobs.put("k", b"0001")
    await blobs.delete("k")
    await blobs.put("l", b"0001")
    assert (await blobs.usage(), await blobs.deleted()) == ((4, 0, 1), 0)


async def test_deleted_bytes_count_against_the_quota_of_the_token(blobs: BlobFixture) -> None:
    await blobs.put("k", b"0001", owner="token:bob", owner_quota=6)
    await blobs.delete("k")
    assert (await blobs.deleted("token:bob"), await blobs.deleted(OWNER)) == (4, 0)
    with pytest.raises(QuotaExceeded) as raised:
        await blobs.put("k", b"0002", owner="token:bob", owner_quota=6)
    assert (raised.value.scope, raised.value.deleted) == ("token", 4)
    await blobs.put("k", b"0002", owner=OWNER)


async def test_an_object_counts_until_it_is_deleted(blobs: BlobFixture) -> None:
    await blobs.limit(10)
    await blobs.put("k", content_of(b"0123456", "place-1"))
    await blobs.delete("k")
    assert await blobs.collect(grace=0) == [7]
    assert (await blobs.trash(), await blobs.deleted()) == (["place-1"], 7)
    with pytest.raises(QuotaExceeded):
        await blobs.begin(5)
    await blobs.forget("place-1")
    assert (await blobs.trash(), await blobs.deleted()) == ([], 0)
    await blobs.begin(5)


async def test_an_ended_upload_counts_while_a_client_may_send_its_object(blobs: BlobFixture) -> None:
    await blobs.limit(10)
    begun = await blobs.begin(7, storage_key="place-1", url_lifetime=HOUR)
    await blobs.end(begun.upload.id)
    assert (await blobs.usage(), await blobs.deleted()) == ((0, 0, 0), 7)
    for _ in range(2):
        await blobs.forget("place-1")
        assert (await blobs.trash(), await blobs.deleted()) == ([], 7)
    with pytest.raises(QuotaExceeded) as raised:
        await blobs.begin(5)
    assert raised.value.freed is not None
    assert raised.value.freed[1] == blobs.bench.clock.now() + timedelta(hours=1)
    blobs.bench.clock.advance(seconds=3600)
    assert await blobs.trash() == ["place-1"], "what arrived late is deleted"
    await blobs.forget("place-1")
    assert (await blobs.trash(), await blobs.deleted()) == ([], 0)


async def test_an_expired_upload_counts_while_a_client_may_send_its_object(blobs: BlobFixture) -> None:
    await blobs.begin(7, storage_key="place-1", url_lifetime=HOUR, lifetime=60 * MICROS)
    blobs.bench.clock.advance(seconds=61)
    assert await blobs.sweep() == 1
    await blobs.forget("place-1")
    assert await blobs.deleted() == 7


async def test_a_collected_object_that_a_client_may_send_again_is_deleted_twice(blobs: BlobFixture) -> None:
    begun = await blobs.begin(7, storage_key="place-1", url_lifetime=HOUR)
    await blobs.finish(begun.upload.id, content_of(b"0123456", "place-1"), lifetime=0)
    await blobs.sweep()
    assert await blobs.collect(grace=0) == [7]
    await blobs.forget("place-1")
    assert (await blobs.trash(), await blobs.deleted()) == ([], 7)
    blobs.bench.clock.advance(seconds=3600)
    assert await blobs.trash() == ["place-1"]


async def test_parts_of_an_ended_upload_cannot_arrive_late(blobs: BlobFixture) -> None:
    begun = await blobs.begin(7, storage_key="place-1", multipart="parts", url_lifetime=HOUR)
    await blobs.end(begun.upload.id)
    await blobs.forget("place-1")
    assert await blobs.deleted() == 0


async def test_an_announced_digest_does_not_hide_deleted_bytes(blobs: BlobFixture) -> None:
    await blobs.limit(10)
    await blobs.begin(1, blob_id=id_of(b"012345678"), size=1)
    await blobs.put("k", b"012345678")
    await blobs.delete("k")
    assert await blobs.deleted() == 9
    with pytest.raises(QuotaExceeded):
        await blobs.put("l", b"another")


async def test_the_recorded_grace_says_when_bytes_are_free(blobs: BlobFixture) -> None:
    await blobs.store.run(RegisterObjectStore(store_id="here", grace=120 * MICROS))
    await blobs.put("k", b"0001")
    await blobs.delete("k")
    usage = await blobs.store.run(GetUsage(tenant=blobs.tenant))
    assert usage.freed_from == usage.freed_by == blobs.bench.clock.now() + timedelta(seconds=120)


async def test_bytes_that_several_owners_delete_at_once_belong_to_the_first_by_name(blobs: BlobFixture) -> None:
    await blobs.put("a", b"0001", owner="token:bob")
    await blobs.put("b", b"0001", owner="token:ann")
    await blobs.store.run(PurgeKeys(tenant=blobs.tenant, owner=None, limit=9, act=Act()))
    await blobs.check()
    assert (await blobs.deleted("token:ann"), await blobs.deleted("token:bob")) == (4, 0)


async def test_commands_that_run_together_count_deleted_bytes_once(blobs: BlobFixture) -> None:
    await blobs.put("k", b"0001")
    values: dict[str, Any] = {"tenant": blobs.tenant, "owner": OWNER, "if_match": "*"}
    puts = (("k", b"0002"), ("l", b"0001"), ("l", b"0003"))
    commands = [PutBlob(id=new_id(), key=key, content=content_of(data), **values) for key, data in puts]
    await asyncio.gather(*map(blobs.store.run, commands))
    await blobs.check()
    assert await blobs.deleted() == 4
