"""Uploads: how they begin, who writes them, and who sees them."""

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
from tests.conformance.depot import HOUR, OWNER, Depot, content_of, depot, id_of

__all__ = ["depot"]

ENDED = ["done", "failed", "gone"]


async def ended(depot: Depot, how: str) -> str:
    """An upload that has ended."""
    id = (await depot.begin(10)).upload.id
    if how == "done":
        await depot.finish(id, b"done")
    else:
        await depot.end(id, "wrong_digest" if how == "failed" else None)
    return id


# -- beginning ----------------------------------------------------------------------------------------------


async def test_an_upload_is_there_as_it_was_begun(depot: Depot) -> None:
    content = content_of(b"12345")
    begun = await depot.begin(
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
    assert upload.created_at == depot.bench.clock.now()
    assert (upload.expires_at - upload.created_at).total_seconds() == 3600
    assert (begun.tenant, begun.reserved, begun.storage_key, begun.multipart) == (depot.tenant, 5, "place-1", "m1")
    assert (begun.if_match, begun.fence) == ("*", None)
    assert await depot.store.run(GetUpload(tenant=depot.tenant, id=upload.id)) == begun
    assert await depot.usage() == (0, 5, 0)
    assert await depot.store.run(GetKey(tenant=depot.tenant, key="a")) is None


async def test_the_same_id_again_answers_with_the_upload_that_is_there(depot: Depot) -> None:
    first = await depot.begin(5)
    depot.bench.clock.advance(seconds=1)
    assert await depot.begin(7, id=first.upload.id, key="other") == first
    assert await depot.usage() == (0, 5, 0)
    await depot.finish(first.upload.id, b"12345")
    assert (await depot.begin(5, id=first.upload.id)).upload.state is UploadState.DONE


async def test_the_same_id_at_once_is_begun_once(depot: Depot) -> None:
    id = new_id()
    command = BeginUpload(id=id, tenant=depot.tenant, owner=OWNER, reserve=5, lifetime=HOUR)
    depot.begun.add(id)
    answers = await asyncio.gather(*[depot.store.run(command) for _ in range(8)])
    assert len({msgspec.json.encode(answer) for answer in answers}) == 1
    await depot.check()
    assert await depot.usage() == (0, 5, 0)


async def test_of_two_at_once_only_as_many_begin_as_fit(depot: Depot) -> None:
    await depot.limit(100)
    await depot.put("k", b"x" * 30)
    commands = [BeginUpload(id=new_id(), tenant=depot.tenant, owner=OWNER, reserve=40, lifetime=HOUR) for _ in range(2)]
    depot.begun |= {command.id for command in commands}
    answers = await asyncio.gather(*map(depot.store.run, commands), return_exceptions=True)
    (refused,) = [answer for answer in answers if isinstance(answer, BaseException)]
    assert isinstance(refused, QuotaExceeded)
    assert (refused.scope, refused.usage, refused.limit) == ("tenant", 70, 100)
    await depot.check()
    await depot.begin(30)
    with pytest.raises(QuotaExceeded):
        await depot.begin(1)
    assert await depot.usage() == (30, 70, 1)


async def test_the_quota_of_a_token_counts_what_its_owner_keeps(depot: Depot) -> None:
    await depot.begin(60, owner="token:bob")
    await depot.begin(60, owner_quota=100)
    with pytest.raises(QuotaExceeded) as refused:
        await depot.begin(41, owner_quota=100)
    assert (refused.value.scope, refused.value.usage, refused.value.limit) == ("token", 60, 100)
    await depot.begin(40, owner_quota=100)


async def test_an_upload_for_a_key_that_cannot_be_set_is_not_begun(depot: Depot) -> None:
    await depot.put("k", b"one")
    with pytest.raises(KeyExists, match="'k'"):
        await depot.begin(5, key="k")
    for key in ("k", "other"):
        with pytest.raises(KeyChanged):
            await depot.begin(5, key=key, if_match=id_of(b"two"))
    assert await depot.usage() == (3, 0, 1)
    await depot.begin(5, key="k", if_match=id_of(b"one"))
    await depot.begin(5, key="k", if_match="*")


# -- writers ------------------------------------------------------------------------------------------------


async def test_who_takes_an_upload_over_fences_out_the_writer_before(depot: Depot) -> None:
    first = await depot.begin(10)
    id = first.upload.id
    await depot.note(id, first.epoch, received=4)
    second = await depot.take(id)
    assert (first.epoch, second.epoch) == (1, 2)
    assert second.upload.received == 4
    with pytest.raises(UploadTaken):
        await depot.note(id, first.epoch, received=6, reserved=20)
    with pytest.raises(UploadTaken):
        await depot.finish(id, b"first", epoch=first.epoch)
    assert await depot.store.run(GetUpload(tenant=depot.tenant, id=id)) == second
    await depot.note(id, second.epoch, received=8)
    assert (await depot.finish(id, b"second", epoch=second.epoch)).upload.blob_id == id_of(b"second")


async def test_all_who_take_an_upload_get_epochs_of_their_own(depot: Depot) -> None:
    first = await depot.begin()
    command = TakeOverUpload(tenant=depot.tenant, id=first.upload.id)
    taken = await asyncio.gather(*[depot.store.run(command) for _ in range(8)])
    assert len({first.epoch, *(one.epoch for one in taken)}) == 9


@pytest.mark.parametrize("how", ENDED)
async def test_nobody_goes_on_with_an_upload_that_has_ended(depot: Depot, how: str) -> None:
    id = await ended(depot, how)
    error = UploadNotFound if how == "gone" else UploadEnded
    calls: list[Any] = [depot.take(id), depot.note(id, 1, reserved=5), depot.finish(id, b"other")]
    for call in calls:
        with pytest.raises(error):
            await call
    assert await depot.usage() == (4 if how == "done" else 0, 0, 0)


async def test_an_upload_whose_bytes_are_read_back_is_not_written_any_more(depot: Depot) -> None:
    begun = await depot.begin(10)
    noted = await depot.note(begun.upload.id, begun.epoch, verifying=True)
    assert noted.upload.state is UploadState.VERIFYING
    with pytest.raises(UploadEnded):
        await depot.take(begun.upload.id)
    assert (await depot.note(begun.upload.id, begun.epoch)).upload.state is UploadState.VERIFYING
    await depot.finish(begun.upload.id, b"one", epoch=begun.epoch)


async def test_those_that_wait_to_be_read_back_for_longest_come_first(depot: Depot) -> None:
    begun = [await depot.begin(1) for _ in range(4)]
    for storage_key in (2, 0, 1):
        depot.bench.clock.advance(seconds=1)
        await depot.note(begun[storage_key].upload.id, begun[storage_key].epoch, verifying=True)
    depot.bench.clock.advance(seconds=1)
    await depot.note(begun[2].upload.id, begun[2].epoch, verifying=True)
    found = await depot.store.run(ListVerifyingUploads(limit=2))
    assert [one.upload.id for one in found] == [begun[2].upload.id, begun[0].upload.id]
    assert found[0] == await depot.store.run(GetUpload(tenant=depot.tenant, id=begun[2].upload.id))
    await depot.finish(begun[2].upload.id, b"1")
    await depot.end(begun[0].upload.id, "wrong_digest")
    assert [one.upload.id for one in await depot.store.run(ListVerifyingUploads(limit=5))] == [begun[1].upload.id]


async def test_what_is_set_aside_grows_and_is_given_back(depot: Depot) -> None:
    await depot.limit(100)
    begun = await depot.begin(10)
    id, epoch = begun.upload.id, begun.epoch
    assert (await depot.note(id, epoch, received=10, reserved=90)).reserved == 90
    with pytest.raises(QuotaExceeded) as refused:
        await depot.note(id, epoch, received=90, reserved=101)
    assert (refused.value.usage, refused.value.limit, refused.value.requested) == (90, 100, 11)
    with pytest.raises(QuotaExceeded) as refused:
        await depot.note(id, epoch, reserved=95, owner_quota=92)
    assert refused.value.scope == "token"
    found = await depot.store.run(GetUpload(tenant=depot.tenant, id=id))
    assert found is not None
    assert (found.reserved, found.upload.received) == (90, 10)
    assert (await depot.note(id, epoch, reserved=5)).reserved == 5
    assert await depot.usage() == (0, 5, 0)
    await depot.limit(1)
    assert (await depot.note(id, epoch, reserved=4)).reserved == 4


async def test_news_let_an_upload_live_on(depot: Depot) -> None:
    begun = await depot.begin(5)
    depot.bench.clock.advance(seconds=3000)
    await depot.note(begun.upload.id, begun.epoch)
    depot.bench.clock.advance(seconds=3000)
    assert await depot.sweep() == 0
    depot.bench.clock.advance(seconds=601)
    assert await depot.sweep() == 1


# -- reading through an upload ------------------------------------------------------------------------------


async def test_a_blob_is_read_through_an_upload_that_is_done(depot: Depot) -> None:
    other = Depot(depot.bench, (await depot.bench.tenants.create("other")).id)
    begun = await depot.begin(5, blob_id=id_of(b"12345"))
    assert await depot.store.run(FindBlob(tenant=depot.tenant, blob_id=id_of(b"12345"))) is None
    await depot.finish(begun.upload.id, b"12345")
    found = await depot.store.run(FindBlob(tenant=depot.tenant, blob_id=id_of(b"12345")))
    assert found is not None
    assert found[0] == content_of(b"12345")
    (reference,) = found[1]
    assert (reference.kind, reference.name, reference.since) == (
        "upload",
        begun.upload.id,
        depot.bench.clock.now(),
    )
    assert await other.store.run(FindBlob(tenant=other.tenant, blob_id=id_of(b"12345"))) is None


# -- events -------------------------------------------------------------------------------------------------


async def test_a_quota_that_is_nearly_used_is_told_once(depot: Depot) -> None:
    await depot.limit(100)
    begun = await depot.begin(79)
    assert await depot.news("quota.warning") == []
    await depot.note(begun.upload.id, begun.epoch, reserved=80)
    warning = QuotaEventData(scope="tenant", owner=None, usage_bytes=80, quota_bytes=100)
    assert await depot.news("quota.warning") == [warning]
    await depot.note(begun.upload.id, begun.epoch, reserved=90)
    await depot.finish(begun.upload.id, b"x" * 85)
    assert await depot.news("quota.warning") == [warning]
    await depot.put("k", b"x" * 5, owner_quota=100)
    token = QuotaEventData(scope="token", owner=OWNER, usage_bytes=90, quota_bytes=100)
    assert token not in await depot.news("quota.warning")  # It was above before.
    await depot.begin(8, owner="token:bob", owner_quota=10)
    assert (await depot.news("quota.warning"))[1:] == [
        QuotaEventData(scope="token", owner="token:bob", usage_bytes=8, quota_bytes=10)
    ]


async def test_what_is_refused_warns_of_nothing(depot: Depot) -> None:
    await depot.limit(100)
    with pytest.raises(QuotaExceeded):
        await depot.begin(101)
    with pytest.raises(QuotaExceeded):
        await depot.begin(90, owner_quota=80)
    assert await depot.bench.event_names() == []


# -- tenants ------------------------------------------------------------------------------------------------


async def test_an_upload_of_another_tenant_is_not_there(depot: Depot) -> None:
    other = Depot(depot.bench, (await depot.bench.tenants.create("other")).id)
    begun = await depot.begin(5, storage_key="place-1")
    id = begun.upload.id
    assert await other.store.run(GetUpload(tenant=other.tenant, id=id)) is None
    calls: list[Any] = [other.take(id), other.note(id, begun.epoch), other.finish(id, b"12345")]
    for call in calls:
        with pytest.raises(UploadNotFound):
            await call
    await other.end(id)
    assert await depot.store.run(GetUpload(tenant=depot.tenant, id=id)) == begun
    own = await other.begin(7, id=id, storage_key="place-2")
    assert (own.tenant, own.reserved, own.storage_key) == (other.tenant, 7, "place-2")
    await other.end(id)
    assert await depot.store.run(GetUpload(tenant=depot.tenant, id=id)) == begun


async def test_a_tenant_that_is_not_there(depot: Depot) -> None:
    nobody, id, store = new_id(), new_id(), depot.store
    calls: list[Any] = [
        lambda: store.run(BeginUpload(id=id, tenant=nobody, owner=OWNER, reserve=1, lifetime=HOUR)),
        lambda: store.run(TakeOverUpload(tenant=nobody, id=id)),
        lambda: store.run(RecordUploadProgress(tenant=nobody, id=id, epoch=1, lifetime=HOUR)),
        lambda: store.run(FinishUpload(tenant=nobody, id=id, content=content_of(b""), lifetime=HOUR)),
        lambda: store.run(EndUpload(tenant=nobody, id=id)),
    ]
    for call in calls:
        with pytest.raises(TenantNotFound):
            await call()
