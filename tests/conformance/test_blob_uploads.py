"""Uploads: blobs on their way in, what is set aside for them, and who may write them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ingot.blobs.errors import (
    KeyChanged,
    KeyExists,
    QuotaExceeded,
    UploadEnded,
    UploadNotFound,
    UploadTaken,
)
from ingot.blobs.model import BlobNews, QuotaNews, UploadState
from ingot.blobs.ports import (
    BeginUpload,
    EndUpload,
    FinishUpload,
    NoteScrub,
    NoteUpload,
    TakeUpload,
)
from ingot.identity import Limits, TenantNotFound
from ingot.jobs import Claim, LeaseLost
from ingot.kernel.errors import IngotError
from ingot.kernel.ids import new_id
from tests.conformance.depot import HOUR, OWNER, Depot, content_of, depot, id_of
from tests.factories import LEASE_SECONDS

__all__ = ["depot"]

ENDED = ["done", "failed", "gone"]


async def limit(depot: Depot, quota: int | None) -> None:
    """Give the tenant a quota."""
    await depot.bench.tenants.change(depot.tenant, limits=Limits(quota_bytes=quota))


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
        place="place-1",
        multipart="m1",
    )
    upload = begun.upload
    assert (upload.state, upload.size, upload.received) == (UploadState.OPEN, 5, 0)
    assert (upload.blob_id, upload.sha256) == (content.id, content.sha256)
    assert (upload.content_type, upload.original_name, upload.key) == ("text/plain", "a.txt", "a")
    assert (upload.job_id, upload.file, upload.name, upload.error, upload.owner) == (None, None, None, None, OWNER)
    assert upload.created_at == depot.bench.clock.now()
    assert (upload.expires_at - upload.created_at).total_seconds() == 3600
    assert (begun.tenant, begun.reserved, begun.place, begun.multipart) == (depot.tenant, 5, "place-1", "m1")
    assert (begun.if_match, begun.fence) == ("*", None)
    assert await depot.store.get_upload(depot.tenant, upload.id) == begun
    assert await depot.usage() == (0, 5, 0)
    assert await depot.store.get_key(depot.tenant, "a") is None


async def test_the_same_id_again_answers_with_the_upload_that_is_there(depot: Depot) -> None:
    first = await depot.begin(5)
    depot.bench.clock.advance(seconds=1)
    assert await depot.begin(7, id=first.upload.id, key="other") == first
    assert await depot.usage() == (0, 5, 0)
    await depot.finish(first.upload.id, b"12345")
    assert (await depot.begin(5, id=first.upload.id)).upload.state is UploadState.DONE


async def test_the_same_id_at_once_is_begun_once(depot: Depot) -> None:
    id = new_id()
    command = BeginUpload(id=id, tenant=depot.tenant, owner=OWNER, reserve=5, keep=HOUR)
    depot.begun.add(id)
    answers = await asyncio.gather(*[depot.store.begin_upload(command) for _ in range(8)])
    assert len({msgspec.json.encode(answer) for answer in answers}) == 1
    await depot.check()
    assert await depot.usage() == (0, 5, 0)


async def test_of_two_at_once_only_as_many_begin_as_fit(depot: Depot) -> None:
    await limit(depot, 100)
    await depot.put("k", b"x" * 30)
    commands = [BeginUpload(id=new_id(), tenant=depot.tenant, owner=OWNER, reserve=40, keep=HOUR) for _ in range(2)]
    depot.begun |= {command.id for command in commands}
    answers = await asyncio.gather(*map(depot.store.begin_upload, commands), return_exceptions=True)
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
    with pytest.raises(KeyExists):
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
    assert await depot.store.get_upload(depot.tenant, id) == second
    await depot.note(id, second.epoch, received=8)
    assert (await depot.finish(id, b"second", epoch=second.epoch)).upload.blob_id == id_of(b"second")


async def test_all_who_take_an_upload_get_epochs_of_their_own(depot: Depot) -> None:
    first = await depot.begin()
    command = TakeUpload(tenant=depot.tenant, id=first.upload.id)
    taken = await asyncio.gather(*[depot.store.take_upload(command) for _ in range(8)])
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
    for place in (2, 0, 1):
        depot.bench.clock.advance(seconds=1)
        await depot.note(begun[place].upload.id, begun[place].epoch, verifying=True)
    depot.bench.clock.advance(seconds=1)
    await depot.note(begun[2].upload.id, begun[2].epoch, verifying=True)
    found = await depot.store.list_verifying(limit=2)
    assert [one.upload.id for one in found] == [begun[2].upload.id, begun[0].upload.id]
    assert found[0] == await depot.store.get_upload(depot.tenant, begun[2].upload.id)
    await depot.finish(begun[2].upload.id, b"1")
    await depot.end(begun[0].upload.id, "wrong_digest")
    assert [one.upload.id for one in await depot.store.list_verifying(limit=5)] == [begun[1].upload.id]


async def test_what_is_set_aside_grows_and_is_given_back(depot: Depot) -> None:
    await limit(depot, 100)
    begun = await depot.begin(10)
    id, epoch = begun.upload.id, begun.epoch
    assert (await depot.note(id, epoch, received=10, reserved=90)).reserved == 90
    with pytest.raises(QuotaExceeded) as refused:
        await depot.note(id, epoch, received=90, reserved=101)
    assert (refused.value.usage, refused.value.limit, refused.value.asked) == (90, 100, 11)
    with pytest.raises(QuotaExceeded) as refused:
        await depot.note(id, epoch, reserved=95, owner_quota=92)
    assert refused.value.scope == "token"
    found = await depot.store.get_upload(depot.tenant, id)
    assert found is not None
    assert (found.reserved, found.upload.received) == (90, 10)
    assert (await depot.note(id, epoch, reserved=5)).reserved == 5
    assert await depot.usage() == (0, 5, 0)
    await limit(depot, 1)
    assert (await depot.note(id, epoch, reserved=4)).reserved == 4


async def test_news_let_an_upload_live_on(depot: Depot) -> None:
    begun = await depot.begin(5)
    depot.bench.clock.advance(seconds=3000)
    await depot.note(begun.upload.id, begun.epoch)
    depot.bench.clock.advance(seconds=3000)
    assert await depot.sweep() == 0
    depot.bench.clock.advance(seconds=601)
    assert await depot.sweep() == 1


# -- finishing ----------------------------------------------------------------------------------------------


async def test_what_was_set_aside_becomes_what_is_used(depot: Depot) -> None:
    begun = await depot.begin(100, content_type="text/plain")
    done = await depot.finish(begun.upload.id, b"12345")
    upload = done.upload
    assert (done.key, upload.state, upload.size) == (None, UploadState.DONE, 5)
    assert (upload.blob_id, upload.sha256) == (id_of(b"12345"), content_of(b"12345").sha256)
    assert (upload.expires_at - depot.bench.clock.now()).total_seconds() == 3600
    assert await depot.usage() == (5, 0, 0)
    found = await depot.store.get_upload(depot.tenant, upload.id)
    assert found is not None
    assert found.upload == upload
    assert await depot.news("blob.stored") == [BlobNews(blob_id=id_of(b"12345"), size=5, content_type="text/plain")]


async def test_an_upload_for_a_key_sets_it(depot: Depot) -> None:
    begun = await depot.begin(5, key="k", content_type="text/plain", original_name="k.txt")
    depot.bench.clock.advance(seconds=5)
    done = await depot.finish(begun.upload.id, b"12345")
    assert done.key == await depot.store.get_key(depot.tenant, "k")
    assert done.key is not None
    assert (done.key.content_type, done.key.original_name, done.key.owner) == ("text/plain", "k.txt", OWNER)
    assert done.key.uploaded_at == depot.bench.clock.now()
    assert await depot.read("k") == b"12345"
    assert await depot.usage() == (5, 0, 1)
    assert await depot.references(id_of(b"12345")) == 1


async def test_more_than_was_set_aside_has_to_fit(depot: Depot) -> None:
    await limit(depot, 10)
    begun = await depot.begin(5, key="k")
    with pytest.raises(QuotaExceeded) as refused:
        await depot.finish(begun.upload.id, b"x" * 11)
    assert (refused.value.usage, refused.value.limit) == (5, 10)
    assert await depot.store.get_upload(depot.tenant, begun.upload.id) == begun
    assert (await depot.store.blob_figures()).blobs == 0
    await depot.finish(begun.upload.id, b"x" * 10)
    assert await depot.usage() == (10, 0, 1)


async def test_what_fits_into_what_was_set_aside_is_never_refused(depot: Depot) -> None:
    begun = await depot.begin(10)
    await limit(depot, 1)
    await depot.finish(begun.upload.id, b"x" * 10, owner_quota=1)
    assert await depot.usage() == (10, 0, 0)


@pytest.mark.parametrize("key", [None, "k"])
async def test_done_again_with_the_same_bytes_it_answers_the_same(depot: Depot, key: str | None) -> None:
    begun = await depot.begin(5, key=key)
    first = await depot.finish(begun.upload.id, content_of(b"12345", "place-1"), epoch=begun.epoch)
    depot.bench.clock.advance(seconds=5)
    assert await depot.finish(begun.upload.id, content_of(b"12345", "place-1"), epoch=begun.epoch) == first
    assert await depot.trash() == []
    assert await depot.finish(begun.upload.id, content_of(b"12345", "place-2")) == first
    assert await depot.trash() == ["place-2"]
    if key is not None:
        await depot.delete(key)
        assert await depot.finish(begun.upload.id, content_of(b"12345", "place-1")) == first
        assert await depot.keys() == []
    with pytest.raises(UploadEnded):
        await depot.finish(begun.upload.id, b"other")
    assert len(await depot.news("blob.stored")) == 1


async def test_many_who_finish_at_once_get_the_same_answer(depot: Depot) -> None:
    begun = await depot.begin(5, key="k")
    command = FinishUpload(tenant=depot.tenant, id=begun.upload.id, content=content_of(b"12345"), keep=HOUR)
    answers = await asyncio.gather(*[depot.store.finish_upload(command) for _ in range(8)])
    assert len({msgspec.json.encode(answer) for answer in answers}) == 1
    await depot.check()
    assert len(await depot.news("blob.stored")) == 1


async def test_of_two_uploads_for_one_key_the_first_sets_it(depot: Depot) -> None:
    one, other = await depot.begin(5, key="k", place="place-1"), await depot.begin(5, key="k", place="place-2")
    await depot.finish(one.upload.id, content_of(b"one", "place-1"))
    with pytest.raises(KeyExists):
        await depot.finish(other.upload.id, content_of(b"other", "place-2"))
    assert await depot.store.get_upload(depot.tenant, other.upload.id) == other
    assert await depot.usage() == (3, 5, 1)
    assert await depot.trash() == []
    await depot.end(other.upload.id)
    assert await depot.trash() == ["place-2"]


async def test_a_key_that_changed_since_is_not_replaced(depot: Depot) -> None:
    await depot.put("k", b"one")
    begun = await depot.begin(5, key="k", if_match=id_of(b"one"))
    await depot.put("k", b"two", if_match="*")
    with pytest.raises(KeyChanged):
        await depot.finish(begun.upload.id, b"three")
    await depot.put("k", b"one", if_match="*")
    await depot.finish(begun.upload.id, b"three")
    assert await depot.read("k") == b"three"


async def test_the_same_bytes_of_two_tenants_are_stored_once(depot: Depot) -> None:
    other = Depot(depot.bench, (await depot.bench.tenants.create("other")).id)
    answers = []
    for place, one in (("place-1", depot), ("place-2", other)):
        begun = await one.begin(5, id=new_id(), size=5, blob_id=id_of(b"12345"), place=place, multipart="m")
        answers.append(await one.finish(begun.upload.id, content_of(b"12345", place)))
    assert [one.place for one in await depot.store.list_trash(limit=5)] == ["place-2"]
    assert (await depot.store.blob_figures()).blobs == 1
    same = [msgspec.structs.replace(answer.upload, id="") for answer in answers]
    assert same[0] == same[1]
    assert await depot.references(id_of(b"12345")) == 2


async def test_the_same_bytes_at_once_are_stored_once(depot: Depot) -> None:
    begun = [await depot.begin(5, place=f"place-{n}") for n in range(8)]
    commands = [
        FinishUpload(tenant=depot.tenant, id=one.upload.id, content=content_of(b"12345", one.place), keep=HOUR)
        for one in begun
    ]
    await asyncio.gather(*map(depot.store.finish_upload, commands))
    await depot.check()
    assert (await depot.store.blob_figures()).blobs == 1
    found = await depot.store.open_blob(depot.tenant, id_of(b"12345"))
    assert found is not None
    places = {f"place-{n}" for n in range(8)}
    assert {found[0].place, *await depot.trash()} == places
    assert len(await depot.trash()) == 7
    assert {(one.kind, one.name) for one in found[1]} == {("upload", one.upload.id) for one in begun}


async def test_damaged_bytes_are_healed_by_the_same_upload(depot: Depot) -> None:
    await depot.put("k", content_of(b"12345", "place-1"))
    await depot.store.note_scrub(NoteScrub(damaged=[(id_of(b"12345"), "place-1")]))
    begun = await depot.begin(5, place="place-2")
    await depot.finish(begun.upload.id, content_of(b"12345", "place-2"))
    found = await depot.store.open_key(depot.tenant, "k")
    assert found is not None
    assert found[1] == content_of(b"12345", "place-2")
    assert await depot.trash() == ["place-1"]


async def test_the_object_of_a_blob_that_is_kept_inline_goes_to_the_trash(depot: Depot) -> None:
    begun = await depot.begin(5, place="place-1", multipart="m1")
    await depot.finish(begun.upload.id, b"12345")
    (trash,) = await depot.store.list_trash(limit=5)
    assert (trash.place, trash.multipart) == ("place-1", "m1")


# -- ending and sweeping ------------------------------------------------------------------------------------


async def test_an_upload_that_is_given_up_is_gone_and_gives_back_once(depot: Depot) -> None:
    begun = await depot.begin(10, place="place-1", multipart="m1")
    for _ in range(2):
        await depot.end(begun.upload.id)
    assert await depot.state(begun.upload.id) is None
    assert await depot.usage() == (0, 0, 0)
    (trash,) = await depot.store.list_trash(limit=5)
    assert (trash.place, trash.multipart) == ("place-1", "m1")


async def test_an_upload_that_failed_is_kept_with_its_error_for_a_while(depot: Depot) -> None:
    begun = await depot.begin(10, key="k", place="place-1")
    for error in ("wrong_digest", "wrong_length"):
        await depot.end(begun.upload.id, error)
    found = await depot.store.get_upload(depot.tenant, begun.upload.id)
    assert found is not None
    assert (found.upload.state, found.upload.error, found.reserved) == (UploadState.FAILED, "wrong_digest", 0)
    assert await depot.trash() == ["place-1"]
    depot.bench.clock.advance(seconds=3599)
    assert await depot.sweep() == 0
    depot.bench.clock.advance(seconds=2)
    assert await depot.sweep() == 1
    assert await depot.state(begun.upload.id) is None


async def test_an_upload_that_is_done_cannot_be_ended(depot: Depot) -> None:
    begun = await depot.begin(10)
    done = await depot.finish(begun.upload.id, b"12345")
    for error in (None, "wrong_digest"):
        await depot.end(begun.upload.id, error)
    found = await depot.store.get_upload(depot.tenant, begun.upload.id)
    assert found is not None
    assert found.upload == done.upload
    assert await depot.usage() == (5, 0, 0)


async def test_those_whose_time_is_over_are_swept_a_bounded_number_at_a_time(depot: Depot) -> None:
    for n in range(5):
        await depot.begin(10, place=f"place-{n}")
    depot.bench.clock.advance(seconds=1)
    stays = await depot.begin(10)
    depot.bench.clock.advance(seconds=3599.5)
    assert [await depot.sweep(3) for _ in range(3)] == [3, 2, 0]
    assert await depot.usage() == (0, 10, 0)
    assert await depot.trash() == [f"place-{n}" for n in range(5)]
    assert await depot.state(stays.upload.id) is UploadState.OPEN


async def test_a_blob_is_kept_by_its_upload_until_that_is_swept(depot: Depot) -> None:
    begun = await depot.begin(5)
    await depot.finish(begun.upload.id, content_of(b"12345", "place-1"))
    await depot.put("k", content_of(b"12345"))
    await depot.delete("k")
    assert await depot.references(id_of(b"12345")) == 1
    assert await depot.condemned() == {id_of(b"12345")}
    depot.bench.clock.advance(seconds=3601)
    assert await depot.collect(grace=0) == []
    assert await depot.condemned() == set()
    assert await depot.sweep() == 1
    assert await depot.usage() == (0, 0, 0)
    assert await depot.store.open_blob(depot.tenant, id_of(b"12345")) is None
    assert await depot.condemned() == {id_of(b"12345")}
    assert await depot.trash() == []
    depot.bench.clock.advance(seconds=3601)
    assert await depot.collect() == [5]
    assert await depot.trash() == ["place-1"]


async def test_the_key_of_an_upload_that_is_swept_stays(depot: Depot) -> None:
    begun = await depot.begin(5, key="k")
    await depot.finish(begun.upload.id, b"12345")
    depot.bench.clock.advance(seconds=3601)
    assert await depot.sweep() == 1
    assert await depot.read("k") == b"12345"
    depot.bench.clock.advance(seconds=7200)
    assert await depot.collect() == []
    assert await depot.read("k") == b"12345"


async def test_a_deleted_key_is_not_kept_by_the_upload_that_set_it(depot: Depot) -> None:
    begun = await depot.begin(5, key="k")
    await depot.finish(begun.upload.id, b"12345", keep=10 * HOUR)
    await depot.delete("k")
    assert await depot.store.open_blob(depot.tenant, id_of(b"12345")) is None
    assert await depot.references(id_of(b"12345")) == 0
    depot.bench.clock.advance(seconds=3601)
    assert await depot.collect() == [5]


async def test_an_upload_under_way_keeps_the_blob_that_it_announced(depot: Depot) -> None:
    await depot.put("k", b"12345")
    begun = await depot.begin(5, blob_id=id_of(b"12345"))
    await depot.delete("k")
    assert await depot.references(id_of(b"12345")) == 1
    assert await depot.store.open_blob(depot.tenant, id_of(b"12345")) is None
    depot.bench.clock.advance(seconds=3500)
    assert await depot.collect(grace=0) == []
    await depot.end(begun.upload.id)
    assert await depot.collect(grace=0) == [5]


# -- reading through an upload ------------------------------------------------------------------------------


async def test_a_blob_is_read_through_an_upload_that_is_done(depot: Depot) -> None:
    other = Depot(depot.bench, (await depot.bench.tenants.create("other")).id)
    begun = await depot.begin(5, blob_id=id_of(b"12345"))
    assert await depot.store.open_blob(depot.tenant, id_of(b"12345")) is None
    await depot.finish(begun.upload.id, b"12345")
    found = await depot.store.open_blob(depot.tenant, id_of(b"12345"))
    assert found is not None
    assert found[0] == content_of(b"12345")
    (reference,) = found[1]
    assert (reference.kind, reference.name, reference.since) == (
        "upload",
        begun.upload.id,
        depot.bench.clock.now(),
    )
    assert await other.store.open_blob(other.tenant, id_of(b"12345")) is None


# -- events -------------------------------------------------------------------------------------------------


async def test_a_quota_that_is_nearly_used_is_told_once(depot: Depot) -> None:
    await limit(depot, 100)
    begun = await depot.begin(79)
    assert await depot.news("quota.warning") == []
    await depot.note(begun.upload.id, begun.epoch, reserved=80)
    warning = QuotaNews(scope="tenant", owner=None, usage_bytes=80, quota_bytes=100)
    assert await depot.news("quota.warning") == [warning]
    await depot.note(begun.upload.id, begun.epoch, reserved=90)
    await depot.finish(begun.upload.id, b"x" * 85)
    assert await depot.news("quota.warning") == [warning]
    await depot.put("k", b"x" * 5, owner_quota=100)
    token = QuotaNews(scope="token", owner=OWNER, usage_bytes=90, quota_bytes=100)
    assert token not in await depot.news("quota.warning")  # It was above before.
    await depot.begin(8, owner="token:bob", owner_quota=10)
    assert (await depot.news("quota.warning"))[1:] == [
        QuotaNews(scope="token", owner="token:bob", usage_bytes=8, quota_bytes=10)
    ]


async def test_what_is_refused_warns_of_nothing(depot: Depot) -> None:
    await limit(depot, 100)
    with pytest.raises(QuotaExceeded):
        await depot.begin(101)
    with pytest.raises(QuotaExceeded):
        await depot.begin(90, owner_quota=80)
    assert await depot.bench.event_names() == []


# -- tenants ------------------------------------------------------------------------------------------------


async def test_an_upload_of_another_tenant_is_not_there(depot: Depot) -> None:
    other = Depot(depot.bench, (await depot.bench.tenants.create("other")).id)
    begun = await depot.begin(5, place="place-1")
    id = begun.upload.id
    assert await other.store.get_upload(other.tenant, id) is None
    calls: list[Any] = [other.take(id), other.note(id, begun.epoch), other.finish(id, b"12345")]
    for call in calls:
        with pytest.raises(UploadNotFound):
            await call
    await other.end(id)
    assert await depot.store.get_upload(depot.tenant, id) == begun
    own = await other.begin(7, id=id, place="place-2")
    assert (own.tenant, own.reserved, own.place) == (other.tenant, 7, "place-2")
    await other.end(id)
    assert await depot.store.get_upload(depot.tenant, id) == begun


async def test_a_tenant_that_is_not_there(depot: Depot) -> None:
    nobody, id, store = new_id(), new_id(), depot.store
    calls: list[Any] = [
        lambda: store.begin_upload(BeginUpload(id=id, tenant=nobody, owner=OWNER, reserve=1, keep=HOUR)),
        lambda: store.take_upload(TakeUpload(tenant=nobody, id=id)),
        lambda: store.note_upload(NoteUpload(tenant=nobody, id=id, epoch=1, keep=HOUR)),
        lambda: store.finish_upload(FinishUpload(tenant=nobody, id=id, content=content_of(b""), keep=HOUR)),
        lambda: store.end_upload(EndUpload(tenant=nobody, id=id)),
    ]
    for call in calls:
        with pytest.raises(TenantNotFound):
            await call()


# -- jobs ---------------------------------------------------------------------------------------------------


def for_job(claim: Claim, **values: Any) -> dict[str, Any]:
    """What an upload for an output of an attempt is begun with."""
    return {"job_id": claim.job.id, "fence": claim.fence, "file": "output", "name": "out.txt"} | values


async def test_an_upload_for_a_job_is_begun_only_under_its_fence(depot: Depot) -> None:
    claim = await depot.bench.make_claim()
    queued = await depot.bench.make_job("other")
    other = Depot(depot.bench, (await depot.bench.tenants.create("other")).id)
    begun = await depot.begin(5, **for_job(claim))
    assert (begun.upload.job_id, begun.upload.file, begun.upload.name) == (claim.job.id, "output", "out.txt")
    assert begun.fence == claim.fence
    calls: list[Any] = [
        depot.begin(5, **for_job(claim, fence=claim.fence + 1)),
        depot.begin(5, **for_job(claim, fence=claim.fence - 1)),
        depot.begin(5, **for_job(claim, job_id=queued.id, fence=0)),
        depot.begin(5, **for_job(claim, job_id=new_id())),
        other.begin(5, **for_job(claim)),
    ]
    for call in calls:
        with pytest.raises(LeaseLost):
            await call
    await depot.bench.jobs.complete(claim)
    with pytest.raises(LeaseLost):
        await depot.begin(5, **for_job(claim))
    assert await depot.usage() == (0, 5, 0)


async def test_an_output_is_the_uploads_while_the_attempt_runs(depot: Depot) -> None:
    claim = await depot.bench.make_claim()
    begun = await depot.begin(5, **for_job(claim))
    done = await depot.finish(begun.upload.id, b"12345")
    assert done.key is None
    assert await depot.store.open_blob(depot.tenant, id_of(b"12345")) is None
    assert await depot.references(id_of(b"12345")) == 1
    assert await depot.usage() == (5, 0, 0)
    assert await depot.news("blob.stored") == []
    assert await depot.sweep() == 0
    assert await depot.collect(grace=0) == []


async def test_an_output_stays_for_as_long_as_its_attempt_runs(depot: Depot) -> None:
    claim = await depot.bench.make_claim()
    begun = await depot.begin(5, **for_job(claim))
    await depot.finish(begun.upload.id, b"12345", keep=1)
    depot.bench.clock.advance(days=1)
    assert await depot.sweep() == 0
    assert await depot.state(begun.upload.id) is UploadState.DONE


@pytest.mark.parametrize("how", ["failed", "released", "lost", "claimed again"])
async def test_what_a_lost_attempt_uploads_is_refused_and_swept(depot: Depot, how: str) -> None:
    claim = await depot.bench.make_claim()
    under_way = await depot.begin(5, place="place-1", **for_job(claim))
    done = await depot.begin(5, place="place-2", **for_job(claim, name="done.txt"))
    await depot.finish(done.upload.id, content_of(b"12345", "place-2"))
    if how == "failed":
        await depot.bench.jobs.fail(claim, "broken")
    elif how == "lost":
        depot.bench.clock.advance(seconds=LEASE_SECONDS + 1)
        await depot.bench.jobs.tend()
    else:
        await depot.bench.jobs.release(claim)
    if how == "claimed again":
        (again,) = await depot.bench.jobs.claim("other", ["noop"])
        assert again.job.id == claim.job.id
    with pytest.raises(LeaseLost):
        await depot.finish(under_way.upload.id, content_of(b"late", "place-1"), epoch=under_way.epoch)
    assert await depot.store.get_upload(depot.tenant, under_way.upload.id) == under_way
    assert await depot.sweep() == 2
    assert await depot.usage() == (0, 0, 0)
    assert await depot.trash() == ["place-1"]
    assert await depot.condemned() == {id_of(b"12345")}


async def test_each_of_many_at_once_is_judged_by_itself(depot: Depot) -> None:
    await limit(depot, 100)
    begun = [await depot.begin(10, key="k7" if n == 7 else f"k{n % 4}") for n in range(8)]
    commands = [
        FinishUpload(
            tenant=depot.tenant,
            id=one.upload.id,
            content=content_of(bytes([n])),
            keep=HOUR,
            epoch=one.epoch + (n == 7),
        )
        for n, one in enumerate(begun)
    ]
    answers = await asyncio.gather(*map(depot.store.finish_upload, commands), return_exceptions=True)
    refused = [type(answer) for answer in answers if isinstance(answer, IngotError)]
    assert sorted(kind.__name__ for kind in refused) == ["KeyExists"] * 3 + ["UploadTaken"]
    await depot.check()
    assert await depot.usage() == (4, 40, 4)
