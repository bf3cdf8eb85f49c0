"""Blobs whose bytes are already stored, digests announced late, unneeded objects, and dry runs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ingot.blobs.errors import BlobNotFound
from ingot.blobs.model import Content
from ingot.blobs.ports import CollectBlob, ListTrash, OpenKey, RecordScrub
from tests.conformance.blob_fixture import HOUR, BlobFixture, blobs, content_of, id_of, stored
from tests.conformance.snapshots import snapshot

__all__ = ["blobs"]

DATA = b"12345"
BLOB = id_of(DATA)


def bare(data: bytes = DATA) -> Content:
    """Content without bytes and without a storage key."""
    return msgspec.structs.replace(content_of(data), inline=None)


# -- content without bytes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", ["inline", "in an object"])
async def test_content_without_bytes_refers_to_a_stored_blob(blobs: BlobFixture, kept: str) -> None:
    whole = content_of(DATA, None if kept == "inline" else "place-1")
    await blobs.put("k", whole)
    begun = await blobs.begin(5, key="l", storage_key="place-2", multipart="parts")
    done = await blobs.finish(begun.upload.id, bare())
    assert done.key is not None
    assert (done.key.blob_id, done.key.size) == (BLOB, 5)
    for key in ("k", "l"):
        found = await blobs.store.run(OpenKey(tenant=blobs.tenant, key=key))
        assert found is not None
        assert stored(found[1]) == whole
    assert [(one.storage_key, one.multipart) for one in await blobs.store.run(ListTrash(limit=10))] == [
        ("place-2", "parts")
    ]
    await blobs.put("m", bare())
    assert await blobs.usage() == (15, 0, 3)


async def test_content_without_bytes_for_a_missing_blob_is_refused(blobs: BlobFixture) -> None:
    begun = await blobs.begin(9, key="k", storage_key="place-1")
    with pytest.raises(BlobNotFound):
        await blobs.finish(begun.upload.id, bare())
    with pytest.raises(BlobNotFound):
        await blobs.put("l", bare())
    assert await blobs.usage() == (0, 9, 0)
    assert await blobs.trash() == []
    await blobs.finish(begun.upload.id, content_of(DATA, "place-1"))
    assert await blobs.read("k") is None
    assert await blobs.usage() == (5, 0, 1)


async def test_content_without_bytes_does_not_repair_a_damaged_blob(blobs: BlobFixture) -> None:
    await blobs.put("k", content_of(DATA, "place-1"))
    await blobs.store.run(RecordScrub(damaged=[(blobs.tenant, BLOB, "place-1")]))
    await blobs.put("l", bare())
    found = await blobs.store.run(OpenKey(tenant=blobs.tenant, key="k"))
    assert found is not None
    assert (found[1].storage_key, found[1].damaged) == ("place-1", True)
    assert await blobs.trash() == []


@pytest.mark.parametrize("content", [content_of(DATA, "place-2"), content_of(DATA)])
async def test_an_object_not_named_by_the_content_goes_to_the_trash(blobs: BlobFixture, content: Content) -> None:
    begun = await blobs.begin(5, key="k", storage_key="place-1", multipart="parts")
    await blobs.finish(begun.upload.id, content)
    assert [(one.storage_key, one.multipart) for one in await blobs.store.run(ListTrash(limit=10))] == [
        ("place-1", "parts")
    ]
    found = await blobs.store.run(OpenKey(tenant=blobs.tenant, key="k"))
    assert found is not None
    assert stored(found[1]) == content


# -- digests announced late ---------------------------------------------------------------------------------


async def test_a_digest_can_be_announced_during_an_upload_and_changed(blobs: BlobFixture) -> None:
    await blobs.put("k", content_of(DATA, "place-1"))
    begun = await blobs.begin(5, storage_key="place-2")
    noted = await blobs.note(begun.upload.id, begun.epoch, blob_id=BLOB, sha256=content_of(DATA).sha256)
    assert (noted.upload.blob_id, noted.upload.sha256) == (BLOB, content_of(DATA).sha256)
    assert (await blobs.note(begun.upload.id, begun.epoch, received=3)).upload.blob_id == BLOB
    await blobs.delete("k")
    assert await blobs.collect(grace=0) == [], "the upload keeps it"
    await blobs.note(begun.upload.id, begun.epoch, blob_id=id_of(b"other"))
    assert await blobs.collect(grace=0) == [5]
    await blobs.note(begun.upload.id, begun.epoch, blob_id=id_of(b"other"))
    assert await blobs.condemned() == set()
    assert await blobs.deleted() == 5, "its object waits to be deleted"


# -- dry runs -----------------------------------------------------------------------------------------------


async def test_a_dry_run_of_the_collector_returns_the_size_and_changes_nothing(blobs: BlobFixture) -> None:
    async def would_go(grace: int = 0) -> Any:
        before = await snapshot(blobs.bench), await blobs.condemned(), await blobs.trash()
        size = await blobs.store.run(CollectBlob(holder=blobs.tenant, blob_id=BLOB, grace=grace, dry_run=True))
        assert (await snapshot(blobs.bench), await blobs.condemned(), await blobs.trash()) == before
        return size

    assert await would_go() is None
    await blobs.put("k", content_of(DATA, "place-1"))
    await blobs.put("l", content_of(DATA))
    await blobs.delete("l")
    assert await would_go() is None, "a key refers to it"
    await blobs.delete("k")
    blobs.bench.clock.advance(seconds=10)
    assert [await would_go(HOUR), await would_go()] == [None, 5]
    assert await blobs.store.run(CollectBlob(holder=blobs.tenant, blob_id=BLOB, grace=0)) == 5
    assert await would_go() is None
