"""Uploads that end: those that become blobs, and those that do not."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ingot.blobs.errors import KeyChanged, KeyExists, QuotaExceeded, UploadEnded
from ingot.blobs.model import BlobEventData, UploadState
from ingot.blobs.ports import FindBlob, FinishUpload, GetBlobMetrics, GetKey, GetUpload, ListTrash, OpenKey, RecordScrub
from ingot.kernel.ids import new_id
from tests.conformance.depot import HOUR, OWNER, Depot, content_of, depot, id_of

__all__ = ["depot"]


# -- finishing ----------------------------------------------------------------------------------------------


async def test_what_was_set_aside_becomes_what_is_used(depot: Depot) -> None:
    begun = await depot.begin(100, content_type="text/plain")
    done = await depot.finish(begun.upload.id, b"12345")
    upload = done.upload
    assert (done.key, upload.state, upload.size) == (None, UploadState.DONE, 5)
    assert (upload.blob_id, upload.sha256) == (id_of(b"12345"), content_of(b"12345").sha256)
    assert (upload.expires_at - depot.bench.clock.now()).total_seconds() == 3600
    assert await depot.usage() == (5, 0, 0)
    found = await depot.store.run(GetUpload(tenant=depot.tenant, id=upload.id))
    assert found is not None
    assert found.upload == upload
    assert await depot.news("blob.stored") == [
        BlobEventData(blob_id=id_of(b"12345"), size=5, content_type="text/plain")
    ]


async def test_an_upload_for_a_key_sets_it(depot: Depot) -> None:
    begun = await depot.begin(5, key="k", content_type="text/plain", original_name="k.txt")
    depot.bench.clock.advance(seconds=5)
    done = await depot.finish(begun.upload.id, b"12345")
    assert done.key == await depot.store.run(GetKey(tenant=depot.tenant, key="k"))
    assert done.key is not None
    assert (done.key.content_type, done.key.original_name, done.key.owner) == ("text/plain", "k.txt", OWNER)
    assert done.key.uploaded_at == depot.bench.clock.now()
    assert await depot.read("k") == b"12345"
    assert await depot.usage() == (5, 0, 1)
    assert await depot.references(id_of(b"12345")) == 1


async def test_more_than_was_set_aside_has_to_fit(depot: Depot) -> None:
    await depot.limit(10)
    begun = await depot.begin(5, key="k")
    with pytest.raises(QuotaExceeded) as refused:
        await depot.finish(begun.upload.id, b"x" * 11)
    assert (refused.value.usage, refused.value.limit) == (5, 10)
    assert await depot.store.run(GetUpload(tenant=depot.tenant, id=begun.upload.id)) == begun
    assert (await depot.store.run(GetBlobMetrics())).blobs == 0
    await depot.finish(begun.upload.id, b"x" * 10)
    assert await depot.usage() == (10, 0, 1)


async def test_what_fits_into_what_was_set_aside_is_never_refused(depot: Depot) -> None:
    begun = await depot.begin(10)
    await depot.limit(1)
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
    command = FinishUpload(tenant=depot.tenant, id=begun.upload.id, content=content_of(b"12345"), lifetime=HOUR)
    answers = await asyncio.gather(*[depot.store.run(command) for _ in range(8)])
    assert len({msgspec.json.encode(answer) for answer in answers}) == 1
    await depot.check()
    assert len(await depot.news("blob.stored")) == 1


async def test_of_two_uploads_for_one_key_the_first_sets_it(depot: Depot) -> None:
    one, other = (
        await depot.begin(5, key="k", storage_key="place-1"),
        await depot.begin(5, key="k", storage_key="place-2"),
    )
    await depot.finish(one.upload.id, content_of(b"one", "place-1"))
    with pytest.raises(KeyExists, match="'k'"):
        await depot.finish(other.upload.id, content_of(b"other", "place-2"))
    assert await depot.store.run(GetUpload(tenant=depot.tenant, id=other.upload.id)) == other
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
    for storage_key, one in (("place-1", depot), ("place-2", other)):
        begun = await one.begin(5, id=new_id(), size=5, blob_id=id_of(b"12345"), storage_key=storage_key, multipart="m")
        answers.append(await one.finish(begun.upload.id, content_of(b"12345", storage_key)))
    assert [one.storage_key for one in await depot.store.run(ListTrash(limit=5))] == ["place-2"]
    assert (await depot.store.run(GetBlobMetrics())).blobs == 1
    same = [msgspec.structs.replace(answer.upload, id="") for answer in answers]
    assert same[0] == same[1]
    assert await depot.references(id_of(b"12345")) == 2


async def test_the_same_bytes_at_once_are_stored_once(depot: Depot) -> None:
    begun = [await depot.begin(5, storage_key=f"place-{n}") for n in range(8)]
    commands = [
        FinishUpload(
            tenant=depot.tenant, id=one.upload.id, content=content_of(b"12345", one.storage_key), lifetime=HOUR
        )
        for one in begun
    ]
    await asyncio.gather(*map(depot.store.run, commands))
    await depot.check()
    assert (await depot.store.run(GetBlobMetrics())).blobs == 1
    found = await depot.store.run(FindBlob(tenant=depot.tenant, blob_id=id_of(b"12345")))
    assert found is not None
    storage_keys = {f"place-{n}" for n in range(8)}
    assert {found[0].storage_key, *await depot.trash()} == storage_keys
    assert len(await depot.trash()) == 7
    assert {(one.kind, one.name) for one in found[1]} == {("upload", one.upload.id) for one in begun}


async def test_damaged_bytes_are_healed_by_the_same_upload(depot: Depot) -> None:
    await depot.put("k", content_of(b"12345", "place-1"))
    await depot.store.run(RecordScrub(damaged=[(id_of(b"12345"), "place-1")]))
    begun = await depot.begin(5, storage_key="place-2")
    await depot.finish(begun.upload.id, content_of(b"12345", "place-2"))
    found = await depot.store.run(OpenKey(tenant=depot.tenant, key="k"))
    assert found is not None
    assert found[1] == content_of(b"12345", "place-2")
    assert await depot.trash() == ["place-1"]


async def test_the_object_of_a_blob_that_is_kept_inline_goes_to_the_trash(depot: Depot) -> None:
    begun = await depot.begin(5, storage_key="place-1", multipart="m1")
    await depot.finish(begun.upload.id, b"12345")
    (trash,) = await depot.store.run(ListTrash(limit=5))
    assert (trash.storage_key, trash.multipart) == ("place-1", "m1")


# -- ending and sweeping ------------------------------------------------------------------------------------


async def test_an_upload_that_is_given_up_is_gone_and_gives_back_once(depot: Depot) -> None:
    begun = await depot.begin(10, storage_key="place-1", multipart="m1")
    for _ in range(2):
        await depot.end(begun.upload.id)
    assert await depot.state(begun.upload.id) is None
    assert await depot.usage() == (0, 0, 0)
    (trash,) = await depot.store.run(ListTrash(limit=5))
    assert (trash.storage_key, trash.multipart) == ("place-1", "m1")


async def test_an_upload_that_failed_is_kept_with_its_error_for_a_while(depot: Depot) -> None:
    begun = await depot.begin(10, key="k", storage_key="place-1")
    for error in ("wrong_digest", "wrong_length"):
        await depot.end(begun.upload.id, error)
    found = await depot.store.run(GetUpload(tenant=depot.tenant, id=begun.upload.id))
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
    found = await depot.store.run(GetUpload(tenant=depot.tenant, id=begun.upload.id))
    assert found is not None
    assert found.upload == done.upload
    assert await depot.usage() == (5, 0, 0)


async def test_those_whose_time_is_over_are_swept_a_bounded_number_at_a_time(depot: Depot) -> None:
    for n in range(5):
        await depot.begin(10, storage_key=f"place-{n}")
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
    assert await depot.store.run(FindBlob(tenant=depot.tenant, blob_id=id_of(b"12345"))) is None
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
    await depot.finish(begun.upload.id, b"12345", lifetime=10 * HOUR)
    await depot.delete("k")
    assert await depot.store.run(FindBlob(tenant=depot.tenant, blob_id=id_of(b"12345"))) is None
    assert await depot.references(id_of(b"12345")) == 0
    depot.bench.clock.advance(seconds=3601)
    assert await depot.collect() == [5]


async def test_an_upload_under_way_keeps_the_blob_that_it_announced(depot: Depot) -> None:
    await depot.put("k", b"12345")
    begun = await depot.begin(5, blob_id=id_of(b"12345"))
    await depot.delete("k")
    assert await depot.references(id_of(b"12345")) == 1
    assert await depot.store.run(FindBlob(tenant=depot.tenant, blob_id=id_of(b"12345"))) is None
    depot.bench.clock.advance(seconds=3500)
    assert await depot.collect(grace=0) == []
    await depot.end(begun.upload.id)
    assert await depot.collect(grace=0) == [5]
