"""Uploads: how they begin, which writer may continue them, and which tenants see them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ingot.blobs.errors import KeyChanged, KeyExists, QuotaExceeded, UploadEnded, UploadNotFound, UploadTaken
from ingot.blobs.model import QuotaEventData, UploadState
from ingot.blobs.ports import (
    BeginUpload,
    EndUpload,
    FindBlob,
    FinishUpload,
    GetKey,
    GetUpload,
    ListVerifyingUploads,
    RecordUploadProgress,
    TakeOverUpload,
)
from ingot.identity import TenantNotFound
from ingot.kernel.ids import new_id
from tests.conformance.blob_fixture import HOUR, OWNER, BlobFixture, blobs, content_of, id_of, stored

__all__ = ["blobs"]

ENDED = ["done", "failed", "gone"]


async def make_ended_upload(blobs: BlobFixture, how: str) -> str:
    """Make an upload that has ended, and return its ID."""
    id = (await blobs.begin(10)).upload.id
    if how == "done":
        await blobs.finish(id, b"done")
    else:
        await blobs.end(id, "wrong_digest" if how == "failed" else None)
    return id


# -- beginning ----------------------------------------------------------------------------------------------


async def test_an_upload_can_be_read_as_it_was_begun(blobs: BlobFixture) -> None:
    content = content_of(b"12345")
    begun = await blobs.begin(
        5,
        size=5,
        blob_id=content.id,
        sha256=content.sha256,
        content_type="text/plain",
        original_name="a.txt",
        key="a",
        if_match="*",
        storage_key="place-1",
        multipart="m1",
    )
    upload = begun.upload
    assert (upload.state, upload.size, upload.received) == (UploadState.OPEN, 5, 0)
    assert (upload.blob_id, upload.sha256) == (content.id, content.sha256)
    assert (upload.content_type, upload.original_name, upload.key) == ("text/plain", "a.txt", "a")
    assert (upload.job_id, upload.file, upload.name, upload.error, upload.owner) == (None, None, None, None, OWNER)
    assert upload.created_at == blobs.bench.clock.now()
    assert (upload.expires_at - upload.created_at).total_seconds() == 3600
    assert (begun.tenant, begun.reserved, begun.storage_key, begun.multipart) == (blobs.tenant, 5, "place-1", "m1")
    assert (begun.if_match, begun.fence) == ("*", None)
    assert await blobs.store.run(GetUpload(tenant=blobs.tenant, id=upload.id)) == begun
    assert await blobs.usage() == (0, 5, 0)
    assert await blobs.store.run(GetKey(tenant=blobs.tenant, key="a")) is None


async def test_a_repeated_begin_returns_the_existing_upload(blobs: BlobFixture) -> None:
    first = await blobs.begin(5)
    blobs.bench.clock.advance(seconds=1)
    assert await blobs.begin(7, id=first.upload.id, key="other") == first
    assert await blobs.usage() == (0, 5, 0)
    await blobs.finish(first.upload.id, b"12345")
    assert (await blobs.begin(5, id=first.upload.id)).upload.state is UploadState.DONE


async def test_concurrent_begins_with_one_id_create_one_upload(blobs: BlobFixture) -> None:
    id = new_id()
    command = BeginUpload(id=id, tenant=blobs.tenant, owner=OWNER, reserve=5, lifetime=HOUR)
    blobs.begun.add(id)
    answers = await asyncio.gather(*[blobs.store.run(command) for _ in range(8)])
    assert len({msgspec.json.encode(answer) for answer in answers}) == 1
    await blobs.check()
    assert await blobs.usage() == (0, 5, 0)


async def test_concurrent_begins_never_exceed_the_quota(blobs: BlobFixture) -> None:
    await blobs.limit(100)
    await blobs.put("k", b"x" * 30)
    commands = [BeginUpload(id=new_id(), tenant=blobs.tenant, owner=OWNER, reserve=40, lifetime=HOUR) for _ in range(2)]
    blobs.begun |= {command.id for command in commands}
    answers = await asyncio.gather(*map(blobs.store.run, commands), return_exceptions=True)
    (refused,) = [answer for answer in answers if isinstance(answer, BaseException)]
    assert isinstance(refused, QuotaExceeded)
    assert (refused.scope, refused.usage, refused.limit) == ("tenant", 70, 100)
    await blobs.check()
    await blobs.begin(30)
    with pytest.raises(QuotaExceeded):
        await blobs.begin(1)
    assert await blobs.usage() == (30, 70, 1)


async def test_the_quota_of_a_token_counts_reservations_of_its_owner(blobs: BlobFixture) -> None:
    await blobs.begin(60, owner="token:bob")
    await blobs.begin(60, owner_quota=100)
    with pytest.raises(QuotaExceeded) as refused:
        await blobs.begin(41, owner_quota=100)
    assert (refused.value.scope, refused.value.usage, refused.value.limit) == ("token", 60, 100)
    await blobs.begin(40, owner_quota=100)


async def test_an_upload_for_a_key_that_cannot_be_set_is_refused_at_once(blobs: BlobFixture) -> None:
    await blobs.put("k", b"one")
    with pytest.raises(KeyExists, match="'k'"):
        await blobs.begin(5, key="k")
    for key in ("k", "other"):
        with pytest.raises(KeyChanged):
            await blobs.begin(5, key=key, if_match=id_of(b"two"))
    assert await blobs.usage() == (3, 0, 1)
    await blobs.begin(5, key="k", if_match=id_of(b"one"))
    await blobs.begin(5, key="k", if_match="*")


# -- writers ------------------------------------------------------------------------------------------------


async def test_a_takeover_fences_out_the_previous_writer(blobs: BlobFixture) -> None:
    first = await blobs.begin(10)
    id = first.upload.id
    await blobs.note(id, first.epoch, received=4)
    second = await blobs.take(id)
    assert (first.epoch, second.epoch) == (1, 2)
    assert second.upload.received == 4
    with pytest.raises(UploadTaken):
        await blobs.note(id, first.epoch, received=6, reserved=20)
    with pytest.raises(UploadTaken):
        await blobs.finish(id, b"first", epoch=first.epoch)
    assert await blobs.store.run(GetUpload(tenant=blobs.tenant, id=id)) == second
    await blobs.note(id, second.epoch, received=8)
    assert (await blobs.finish(id, b"second", epoch=second.epoch)).upload.blob_id == id_of(b"second")


async def test_concurrent_takeovers_get_distinct_epochs(blobs: BlobFixture) -> None:
    first = await blobs.begin()
    command = TakeOverUpload(tenant=blobs.tenant, id=first.upload.id)
    taken = await asyncio.gather(*[blobs.store.run(command) for _ in range(8)])
    assert len({first.epoch, *(one.epoch for one in taken)}) == 9


@pytest.mark.parametrize("how", ENDED)
async def test_an_ended_upload_cannot_be_continued(blobs: BlobFixture, how: str) -> None:
    id = await make_ended_upload(blobs, how)
    error = UploadNotFound if how == "gone" else UploadEnded
    calls: list[Any] = [blobs.take(id), blobs.note(id, 1, reserved=5), blobs.finish(id, b"other")]
    for call in calls:
        with pytest.raises(error):
            await call
    assert await blobs.usage() == (4 if how == "done" else 0, 0, 0)


async def test_an_upload_under_verification_cannot_be_taken_over(blobs: BlobFixture) -> None:
    begun = await blobs.begin(10)
    noted = await blobs.note(begun.upload.id, begun.epoch, verifying=True)
    assert noted.upload.state is UploadState.VERIFYING
    with pytest.raises(UploadEnded):
        await blobs.take(begun.upload.id)
    assert (await blobs.note(begun.upload.id, begun.epoch)).upload.state is UploadState.VERIFYING
    await blobs.finish(begun.upload.id, b"one", epoch=begun.epoch)


async def test_uploads_are_verified_in_the_order_of_their_last_activity(blobs: BlobFixture) -> None:
    begun = [await blobs.begin(1) for _ in range(4)]
    for storage_key in (2, 0, 1):
        blobs.bench.clock.advance(seconds=1)
        await blobs.note(begun[storage_key].upload.id, begun[storage_key].epoch, verifying=True)
    blobs.bench.clock.advance(seconds=1)
    await blobs.note(begun[2].upload.id, begun[2].epoch, verifying=True)
    found = await blobs.store.run(ListVerifyingUploads(limit=2))
    assert [one.upload.id for one in found] == [begun[2].upload.id, begun[0].upload.id]
    assert found[0] == await blobs.store.run(GetUpload(tenant=blobs.tenant, id=begun[2].upload.id))
    await blobs.finish(begun[2].upload.id, b"1")
    await blobs.end(begun[0].upload.id, "wrong_digest")
    assert [one.upload.id for one in await blobs.store.run(ListVerifyingUploads(limit=5))] == [begun[1].upload.id]


async def test_a_reservation_can_grow_within_the_quota_and_shrink(blobs: BlobFixture) -> None:
    await blobs.limit(100)
    begun = await blobs.begin(10)
    id, epoch = begun.upload.id, begun.epoch
    assert (await blobs.note(id, epoch, received=10, reserved=90)).reserved == 90
    with pytest.raises(QuotaExceeded) as refused:
        await blobs.note(id, epoch, received=90, reserved=101)
    assert (refused.value.usage, refused.value.limit, refused.value.requested) == (90, 100, 11)
    with pytest.raises(QuotaExceeded) as refused:
        await blobs.note(id, epoch, reserved=95, owner_quota=92)
    assert refused.value.scope == "token"
    found = await blobs.store.run(GetUpload(tenant=blobs.tenant, id=id))
    assert found is not None
    assert (found.reserved, found.upload.received) == (90, 10)
    assert (await blobs.note(id, epoch, reserved=5)).reserved == 5
    assert await blobs.usage() == (0, 5, 0)
    await blobs.limit(1)
    assert (await blobs.note(id, epoch, reserved=4)).reserved == 4


async def test_recorded_progress_extends_the_lifetime_of_an_upload(blobs: BlobFixture) -> None:
    begun = await blobs.begin(5)
    blobs.bench.clock.advance(seconds=3000)
    await blobs.note(begun.upload.id, begun.epoch)
    blobs.bench.clock.advance(seconds=3000)
    assert await blobs.sweep() == 0
    blobs.bench.clock.advance(seconds=601)
    assert await blobs.sweep() == 1


# -- reading through an upload ------------------------------------------------------------------------------


async def test_a_finished_upload_makes_its_blob_readable_in_its_tenant(blobs: BlobFixture) -> None:
    other = BlobFixture(blobs.bench, (await blobs.bench.tenants.create("other")).id)
    begun = await blobs.begin(5, blob_id=id_of(b"12345"))
    assert await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=id_of(b"12345"))) is None
    await blobs.finish(begun.upload.id, b"12345")
    found = await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=id_of(b"12345")))
    assert found is not None
    assert stored(found[0]) == content_of(b"12345")
    (reference,) = found[1]
    assert (reference.kind, reference.name, reference.since) == (
        "upload",
        begun.upload.id,
        blobs.bench.clock.now(),
    )
    assert await other.store.run(FindBlob(tenant=other.tenant, blob_id=id_of(b"12345"))) is None


# -- events -------------------------------------------------------------------------------------------------


async def test_a_quota_warning_is_published_once_at_80_percent(blobs: BlobFixture) -> None:
    await blobs.limit(100)
    begun = await blobs.begin(79)
    assert await blobs.news("quota.warning") == []
    await blobs.note(begun.upload.id, begun.epoch, reserved=80)
    warning = QuotaEventData(scope="tenant", owner=None, usage_bytes=80, quota_bytes=100)
    assert await blobs.news("quota.warning") == [warning]
    await blobs.note(begun.upload.id, begun.epoch, reserved=90)
    await blobs.finish(begun.upload.id, b"x" * 85)
    assert await blobs.news("quota.warning") == [warning]
    await blobs.put("k", b"x" * 5, owner_quota=100)
    token = QuotaEventData(scope="token", owner=OWNER, usage_bytes=90, quota_bytes=100)
    assert token not in await blobs.news("quota.warning")  # The owner was above 80 percent before.
    await blobs.begin(8, owner="token:bob", owner_quota=10)
    assert (await blobs.news("quota.warning"))[1:] == [
        QuotaEventData(scope="token", owner="token:bob", usage_bytes=8, quota_bytes=10)
    ]


async def test_refused_uploads_publish_no_quota_warning(blobs: BlobFixture) -> None:
    await blobs.limit(100)
    with pytest.raises(QuotaExceeded):
        await blobs.begin(101)
    with pytest.raises(QuotaExceeded):
        await blobs.begin(90, owner_quota=80)
    assert await blobs.bench.event_names() == []


# -- tenants ------------------------------------------------------------------------------------------------


async def test_a_tenant_cannot_see_uploads_of_another_tenant(blobs: BlobFixture) -> None:
    other = BlobFixture(blobs.bench, (await blobs.bench.tenants.create("other")).id)
    begun = await blobs.begin(5, storage_key="place-1")
    id = begun.upload.id
    assert await other.store.run(GetUpload(tenant=other.tenant, id=id)) is None
    calls: list[Any] = [other.take(id), other.note(id, begun.epoch), other.finish(id, b"12345")]
    for call in calls:
        with pytest.raises(UploadNotFound):
            await call
    await other.end(id)
    assert await blobs.store.run(GetUpload(tenant=blobs.tenant, id=id)) == begun
    own = await other.begin(7, id=id, storage_key="place-2")
    assert (own.tenant, own.reserved, own.storage_key) == (other.tenant, 7, "place-2")
    await other.end(id)
    assert await blobs.store.run(GetUpload(tenant=blobs.tenant, id=id)) == begun


async def test_upload_commands_of_a_missing_tenant_are_refused(blobs: BlobFixture) -> None:
    missing_tenant, id, store = new_id(), new_id(), blobs.store
    calls: list[Any] = [
        lambda: store.run(BeginUpload(id=id, tenant=missing_tenant, owner=OWNER, reserve=1, lifetime=HOUR)),
        lambda: store.run(TakeOverUpload(tenant=missing_tenant, id=id)),
        lambda: store.run(RecordUploadProgress(tenant=missing_tenant, id=id, epoch=1, lifetime=HOUR)),
        lambda: store.run(FinishUpload(tenant=missing_tenant, id=id, content=content_of(b""), lifetime=HOUR)),
        lambda: store.run(EndUpload(tenant=missing_tenant, id=id)),
    ]
    for call in calls:
        with pytest.raises(TenantNotFound):
            await call()
