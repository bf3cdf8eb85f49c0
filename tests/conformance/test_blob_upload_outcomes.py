"""How uploads end: as blobs, failed, canceled or swept."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ingot.blobs.errors import KeyChanged, KeyExists, QuotaExceeded, UploadEnded
from ingot.blobs.model import BlobEventData, UploadState
from ingot.blobs.ports import FindBlob, FinishUpload, GetBlobMetrics, GetKey, GetUpload, ListTrash, OpenKey, RecordScrub
from ingot.kernel.ids import new_id
from tests.conformance.blob_fixture import HOUR, OWNER, BlobFixture, blobs, content_of, id_of, stored

__all__ = ["blobs"]


# -- finishing ----------------------------------------------------------------------------------------------


async def test_a_finished_upload_turns_its_reservation_into_usage(blobs: BlobFixture) -> None:
    begun = await blobs.begin(100, content_type="text/plain")
    done = await blobs.finish(begun.upload.id, b"12345")
    upload = done.upload
    assert (done.key, upload.state, upload.size) == (None, UploadState.DONE, 5)
    assert (upload.blob_id, upload.sha256) == (id_of(b"12345"), content_of(b"12345").sha256)
    assert (upload.expires_at - blobs.bench.clock.now()).total_seconds() == 3600
    assert await blobs.usage() == (5, 0, 0)
    found = await blobs.store.run(GetUpload(tenant=blobs.tenant, id=upload.id))
    assert found is not None
    assert found.upload == upload
    assert await blobs.news("blob.stored") == [
        BlobEventData(blob_id=id_of(b"12345"), size=5, content_type="text/plain")
    ]


async def test_a_finished_upload_sets_its_key(blobs: BlobFixture) -> None:
    begun = await blobs.begin(5, key="k", content_type="text/plain", original_name="k.txt")
    blobs.bench.clock.advance(seconds=5)
    done = await blobs.finish(begun.upload.id, b"12345")
    assert done.key == await blobs.store.run(GetKey(tenant=blobs.tenant, key="k"))
    assert done.key is not None
    assert (done.key.content_type, done.key.original_name, done.key.owner) == ("text/plain", "k.txt", OWNER)
    assert done.key.uploaded_at == blobs.bench.clock.now()
    assert await blobs.read("k") == b"12345"
    assert await blobs.usage() == (5, 0, 1)
    assert await blobs.references(id_of(b"12345")) == 1


async def test_bytes_beyond_the_reservation_must_fit_the_quota(blobs: BlobFixture) -> None:
    await blobs.limit(10)
    begun = await blobs.begin(5, key="k")
    with pytest.raises(QuotaExceeded) as refused:
        await blobs.finish(begun.upload.id, b"x" * 11)
    assert (refused.value.usage, refused.value.limit) == (5, 10)
    assert await blobs.store.run(GetUpload(tenant=blobs.tenant, id=begun.upload.id)) == begun
    assert (await blobs.store.run(GetBlobMetrics())).blobs == 0
    await blobs.finish(begun.upload.id, b"x" * 10)
    assert await blobs.usage() == (10, 0, 1)


async def test_bytes_within_the_reservation_are_never_refused(blobs: BlobFixture) -> None:
    begun = await blobs.begin(10)
    await blobs.limit(1)
    await blobs.finish(begun.upload.id, b"x" * 10, owner_quota=1)
    assert await blobs.usage() == (10, 0, 0)


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_repeated_finish_with_the_same_bytes_returns_the_same_result(
    blobs: BlobFixture, key: str | None
) -> None:
    begun = await blobs.begin(5, key=key)
    first = await blobs.finish(begun.upload.id, content_of(b"12345", "place-1"), epoch=begun.epoch)
    blobs.bench.clock.advance(seconds=5)
    assert await blobs.finish(begun.upload.id, content_of(b"12345", "place-1"), epoch=begun.epoch) == first
    assert await blobs.trash() == []
    assert await blobs.finish(begun.upload.id, content_of(b"12345", "place-2")) == first
    assert await blobs.trash() == ["place-2"]
    if key is not None:
        await blobs.delete(key)
        assert await blobs.finish(begun.upload.id, content_of(b"12345", "place-1")) == first
        assert await blobs.keys() == []
    with pytest.raises(UploadEnded):
        await blobs.finish(begun.upload.id, b"other")
    assert len(await blobs.news("blob.stored")) == 1


async def test_concurrent_finishes_of_one_upload_return_the_same_result(blobs: BlobFixture) -> None:
    begun = await blobs.begin(5, key="k")
    command = FinishUpload(tenant=blobs.tenant, id=begun.upload.id, content=content_of(b"12345"), lifetime=HOUR)
    answers = await asyncio.gather(*[blobs.store.run(command) for _ in range(8)])
    assert len({msgspec.json.encode(answer) for answer in answers}) == 1
    await blobs.check()
    assert len(await blobs.news("blob.stored")) == 1


async def test_the_first_of_two_uploads_for_one_key_sets_it(blobs: BlobFixture) -> None:
    one, other = (
        await blobs.begin(5, key="k", storage_key="place-1"),
        await blobs.begin(5, key="k", storage_key="place-2"),
    )
    await blobs.finish(one.upload.id, content_of(b"one", "place-1"))
    with pytest.raises(KeyExists, match="'k'"):
        await blobs.finish(other.upload.id, content_of(b"other", "place-2"))
    assert await blobs.store.run(GetUpload(tenant=blobs.tenant, id=other.upload.id)) == other
    assert await blobs.usage() == (3, 5, 1)
    assert await blobs.trash() == []
    await blobs.end(other.upload.id)
    assert await blobs.trash() == ["place-2"]


async def test_an_upload_does_not_replace_a_key_that_changed(blobs: BlobFixture) -> None:
    await blobs.put("k", b"one")
    begun = await blobs.begin(5, key="k", if_match=id_of(b"one"))
    await blobs.put("k", b"two", if_match="*")
    with pytest.raises(KeyChanged):
        await blobs.finish(begun.upload.id, b"three")
    await blobs.put("k", b"one", if_match="*")
    await blobs.finish(begun.upload.id, b"three")
    assert await blobs.read("k") == b"three"


async def test_the_same_bytes_of_two_tenants_are_two_blobs(blobs: BlobFixture) -> None:
    other = BlobFixture(blobs.bench, (await blobs.bench.tenants.create("other")).id)
    answers = []
    for storage_key, one in (("place-1", blobs), ("place-2", other)):
        begun = await one.begin(5, id=new_id(), size=5, blob_id=id_of(b"12345"), storage_key=storage_key, multipart="m")
        answers.append(await one.finish(begun.upload.id, content_of(b"12345", storage_key)))
    assert [one.storage_key for one in await blobs.store.run(ListTrash(limit=5))] == []
    assert (await blobs.store.run(GetBlobMetrics())).blobs == 2
    same = [msgspec.structs.replace(answer.upload, id="") for answer in answers]
    assert same[0] == same[1]
    assert await blobs.references(id_of(b"12345")) == 2


async def test_concurrent_uploads_of_the_same_bytes_store_one_blob(blobs: BlobFixture) -> None:
    begun = [await blobs.begin(5, storage_key=f"place-{n}") for n in range(8)]
    commands = [
        FinishUpload(
            tenant=blobs.tenant, id=one.upload.id, content=content_of(b"12345", one.storage_key), lifetime=HOUR
        )
        for one in begun
    ]
    await asyncio.gather(*map(blobs.store.run, commands))
    await blobs.check()
    assert (await blobs.store.run(GetBlobMetrics())).blobs == 1
    found = await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=id_of(b"12345")))
    assert found is not None
    storage_keys = {f"place-{n}" for n in range(8)}
    assert {found[0].storage_key, *await blobs.trash()} == storage_keys
    assert len(await blobs.trash()) == 7
    assert {(one.kind, one.name) for one in found[1]} == {("upload", one.upload.id) for one in begun}


async def test_an_upload_of_the_same_bytes_repairs_a_damaged_blob(blobs: BlobFixture) -> None:
    await blobs.put("k", content_of(b"12345", "place-1"))
    await blobs.store.run(RecordScrub(damaged=[(blobs.tenant, id_of(b"12345"), "place-1")]))
    begun = await blobs.begin(5, storage_key="place-2")
    await blobs.finish(begun.upload.id, content_of(b"12345", "place-2"))
    found = await blobs.store.run(OpenKey(tenant=blobs.tenant, key="k"))
    assert found is not None
    assert stored(found[1]) == content_of(b"12345", "place-2")
    assert await blobs.trash() == ["place-1"]


async def test_the_object_of_an_inline_blob_goes_to_the_trash(blobs: BlobFixture) -> None:
    begun = await blobs.begin(5, storage_key="place-1", multipart="m1")
    await blobs.finish(begun.upload.id, b"12345")
    (trash,) = await blobs.store.run(ListTrash(limit=5))
    assert (trash.storage_key, trash.multipart) == ("place-1", "m1")


# -- ending and sweeping ------------------------------------------------------------------------------------


async def test_a_canceled_upload_is_removed_and_frees_its_reservation_once(blobs: BlobFixture) -> None:
    begun = await blobs.begin(10, storage_key="place-1", multipart="m1")
    for _ in range(2):
        await blobs.end(begun.upload.id)
    assert await blobs.state(begun.upload.id) is None
    assert await blobs.usage() == (0, 0, 0)
    (trash,) = await blobs.store.run(ListTrash(limit=5))
    assert (trash.storage_key, trash.multipart) == ("place-1", "m1")


async def test_a_failed_upload_keeps_its_first_error_until_it_is_swept(blobs: BlobFixture) -> None:
    begun = await blobs.begin(10, key="k", storage_key="place-1")
    for error in ("wrong_digest", "wrong_length"):
        await blobs.end(begun.upload.id, error)
    found = await blobs.store.run(GetUpload(tenant=blobs.tenant, id=begun.upload.id))
    assert found is not None
    assert (found.upload.state, found.upload.error, found.reserved) == (UploadState.FAILED, "wrong_digest", 0)
    assert await blobs.trash() == ["place-1"]
    blobs.bench.clock.advance(seconds=3599)
    assert await blobs.sweep() == 0
    blobs.bench.clock.advance(seconds=2)
    assert await blobs.sweep() == 1
    assert await blobs.state(begun.upload.id) is None


async def test_a_finished_upload_cannot_be_canceled_or_failed(blobs: BlobFixture) -> None:
    begun = await blobs.begin(10)
    done = await blobs.finish(begun.upload.id, b"12345")
    for error in (None, "wrong_digest"):
        await blobs.end(begun.upload.id, error)
    found = await blobs.store.run(GetUpload(tenant=blobs.tenant, id=begun.upload.id))
    assert found is not None
    assert found.upload == done.upload
    assert await blobs.usage() == (5, 0, 0)


async def test_a_sweep_removes_expired_uploads_up_to_its_limit(blobs: BlobFixture) -> None:
    for n in range(5):
        await blobs.begin(10, storage_key=f"place-{n}")
    blobs.bench.clock.advance(seconds=1)
    stays = await blobs.begin(10)
    blobs.bench.clock.advance(seconds=3599.5)
    assert [await blobs.sweep(3) for _ in range(3)] == [3, 2, 0]
    assert await blobs.usage() == (0, 10, 0)
    assert await blobs.trash() == [f"place-{n}" for n in range(5)]
    assert await blobs.state(stays.upload.id) is UploadState.OPEN


async def test_a_finished_upload_keeps_its_blob_until_it_is_swept(blobs: BlobFixture) -> None:
    begun = await blobs.begin(5)
    await blobs.finish(begun.upload.id, content_of(b"12345", "place-1"))
    await blobs.put("k", content_of(b"12345"))
    await blobs.delete("k")
    assert await blobs.references(id_of(b"12345")) == 1
    assert await blobs.condemned() == set()
    blobs.bench.clock.advance(seconds=3601)
    assert await blobs.collect(grace=0) == []
    assert await blobs.condemned() == set()
    assert await blobs.sweep() == 1
    assert await blobs.usage() == (0, 0, 0)
    assert await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=id_of(b"12345"))) is None
    assert await blobs.condemned() == {id_of(b"12345")}
    assert await blobs.trash() == []
    blobs.bench.clock.advance(seconds=3601)
    assert await blobs.collect() == [5]
    assert await blobs.trash() == ["place-1"]


async def test_sweeping_an_upload_keeps_the_key_it_set(blobs: BlobFixture) -> None:
    begun = await blobs.begin(5, key="k")
    await blobs.finish(begun.upload.id, b"12345")
    blobs.bench.clock.advance(seconds=3601)
    assert await blobs.sweep() == 1
    assert await blobs.read("k") == b"12345"
    blobs.bench.clock.advance(seconds=7200)
    assert await blobs.collect() == []
    assert await blobs.read("k") == b"12345"


async def test_the_upload_that_set_a_key_does_not_keep_its_blob(blobs: BlobFixture) -> None:
    begun = await blobs.begin(5, key="k")
    await blobs.finish(begun.upload.id, b"12345", lifetime=10 * HOUR)
    await blobs.delete("k")
    assert await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=id_of(b"12345"))) is None
    assert await blobs.references(id_of(b"12345")) == 0
    blobs.bench.clock.advance(seconds=3601)
    assert await blobs.collect() == [5]


async def test_an_open_upload_keeps_the_blob_it_announced(blobs: BlobFixture) -> None:
    await blobs.put("k", b"12345")
    begun = await blobs.begin(5, blob_id=id_of(b"12345"))
    await blobs.delete("k")
    assert await blobs.references(id_of(b"12345")) == 1
    assert await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=id_of(b"12345"))) is None
    blobs.bench.clock.advance(seconds=3500)
    assert await blobs.collect(grace=0) == []
    await blobs.end(begun.upload.id)
    assert await blobs.collect(grace=0) == [5]
