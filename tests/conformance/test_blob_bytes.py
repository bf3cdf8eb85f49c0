"""Blobs whose bytes are here already, digests that come late, objects that nobody needs, and dry runs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ingot.blobs.errors import BlobNotFound
from ingot.blobs.model import Content
from ingot.blobs.ports import CollectBlob, ListTrash, OpenKey, RecordScrub
from tests.conformance.depot import HOUR, Depot, content_of, depot, id_of
from tests.conformance.snapshots import snapshot

__all__ = ["depot"]

DATA = b"12345"
BLOB = id_of(DATA)


def bare(data: bytes = DATA) -> Content:
    """A blob without its bytes, and without where they are."""
    return msgspec.structs.replace(content_of(data), inline=None)


# -- content that stands for a blob -------------------------------------------------------------------------


@pytest.mark.parametrize("kept", ["inline", "at a place"])
async def test_content_without_bytes_stands_for_a_blob_that_is_here(depot: Depot, kept: str) -> None:
    whole = content_of(DATA, None if kept == "inline" else "place-1")
    await depot.put("k", whole)
    begun = await depot.begin(5, key="l", storage_key="place-2", multipart="parts")
    done = await depot.finish(begun.upload.id, bare())
    assert done.key is not None
    assert (done.key.blob_id, done.key.size) == (BLOB, 5)
    for key in ("k", "l"):
        found = await depot.store.run(OpenKey(tenant=depot.tenant, key=key))
        assert found is not None
        assert found[1] == whole
    assert [(one.storage_key, one.multipart) for one in await depot.store.run(ListTrash(limit=10))] == [
        ("place-2", "parts")
    ]
    await depot.put("m", bare())
    assert await depot.usage() == (15, 0, 3)


async def test_content_without_bytes_that_is_not_here_is_refused(depot: Depot) -> None:
    begun = await depot.begin(9, key="k", storage_key="place-1")
    with pytest.raises(BlobNotFound):
        await depot.finish(begun.upload.id, bare())
    with pytest.raises(BlobNotFound):
        await depot.put("l", bare())
    assert await depot.usage() == (0, 9, 0)
    assert await depot.trash() == []
    await depot.finish(begun.upload.id, content_of(DATA, "place-1"))
    assert await depot.read("k") is None
    assert await depot.usage() == (5, 0, 1)


async def test_a_damaged_blob_is_not_mended_by_content_without_bytes(depot: Depot) -> None:
    await depot.put("k", content_of(DATA, "place-1"))
    await depot.store.run(RecordScrub(damaged=[(BLOB, "place-1")]))
    await depot.put("l", bare())
    found = await depot.store.run(OpenKey(tenant=depot.tenant, key="k"))
    assert found is not None
    assert (found[1].storage_key, found[1].damaged) == ("place-1", True)
    assert await depot.trash() == []


@pytest.mark.parametrize("content", [content_of(DATA, "place-2"), content_of(DATA)])
async def test_an_object_that_the_content_does_not_name_goes_to_the_trash(depot: Depot, content: Content) -> None:
    begun = await depot.begin(5, key="k", storage_key="place-1", multipart="parts")
    await depot.finish(begun.upload.id, content)
    assert [(one.storage_key, one.multipart) for one in await depot.store.run(ListTrash(limit=10))] == [
        ("place-1", "parts")
    ]
    found = await depot.store.run(OpenKey(tenant=depot.tenant, key="k"))
    assert found is not None
    assert found[1] == content


# -- digests that come late ---------------------------------------------------------------------------------


async def test_a_digest_can_be_announced_late_and_changed(depot: Depot) -> None:
    await depot.put("k", content_of(DATA, "place-1"))
    begun = await depot.begin(5, storage_key="place-2")
    noted = await depot.note(begun.upload.id, begun.epoch, blob_id=BLOB, sha256=content_of(DATA).sha256)
    assert (noted.upload.blob_id, noted.upload.sha256) == (BLOB, content_of(DATA).sha256)
    assert (await depot.note(begun.upload.id, begun.epoch, received=3)).upload.blob_id == BLOB
    await depot.delete("k")
    assert await depot.collect(grace=0) == [], "the upload keeps it"
    await depot.note(begun.upload.id, begun.epoch, blob_id=id_of(b"other"))
    assert await depot.collect(grace=0) == [5]
    await depot.note(begun.upload.id, begun.epoch, blob_id=id_of(b"other"))
    assert await depot.condemned() == set()


# -- dry runs -----------------------------------------------------------------------------------------------


async def test_a_dry_run_of_the_collector_tells_what_would_go_and_changes_nothing(depot: Depot) -> None:
    async def would_go(grace: int = 0) -> Any:
        before = await snapshot(depot.bench), await depot.condemned(), await depot.trash()
        size = await depot.store.run(CollectBlob(blob_id=BLOB, grace=grace, dry_run=True))
        assert (await snapshot(depot.bench), await depot.condemned(), await depot.trash()) == before
        return size

    assert await would_go() is None
    await depot.put("k", content_of(DATA, "place-1"))
    await depot.put("l", content_of(DATA))
    await depot.delete("l")
    assert await would_go() is None, "a key refers to it"
    await depot.delete("k")
    depot.bench.clock.advance(seconds=10)
    assert [await would_go(HOUR), await would_go()] == [None, 5]
    assert await depot.store.run(CollectBlob(blob_id=BLOB, grace=0)) == 5
    assert await would_go() is None
