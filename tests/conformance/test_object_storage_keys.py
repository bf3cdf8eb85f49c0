"""What an object store tells of its places, and whose they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from ingot.blobs.ports import ObjectStore
from ingot.kernel.ids import new_id
from ingot.objects.local import LocalStore
from ingot.objects.s3 import BucketStore
from tests.conformance.object_stores import STORES, put
from tests.s3 import bucket, client_of, prefix_of, server_url


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    """Each store in turn."""
    async with STORES[request.param](tmp_path / "data") as store:
        yield store


async def places(store: ObjectStore) -> set[str]:
    return {place async for place, _ in store.list_objects()}


async def test_objects_are_the_first_database_s(store: ObjectStore) -> None:
    await put(store, b"1")
    assert await store.register_owner("first") == "first"
    assert await store.register_owner("second") == "first"
    assert await store.register_owner("first") == "first"


async def test_whose_objects_they_are_is_no_object(store: ObjectStore) -> None:
    await store.register_owner("first")
    assert await places(store) == set()
    place = await put(store, b"1")
    assert await places(store) == {place}


async def test_a_look_at_places_can_end_early(store: ObjectStore) -> None:
    known = {await put(store, b"%d" % n) for n in range(3)}
    async with aclosing(store.list_objects()) as found:
        assert (await anext(found))[0] in known
    assert await places(store) == known


async def test_what_is_not_ours_is_no_place(store: ObjectStore, tmp_path: Path) -> None:
    """It would be deleted elsewhere, if at all."""
    place = await put(store, b"1")
    if isinstance(store, LocalStore):
        for name in ("aa/notes.txt", f"aa/{new_id()[:-2]}bb", "uploads/notes.txt"):
            (tmp_path / "data/blobs" / name).write_text("not ours")
    else:
        assert isinstance(store, BucketStore)
        client = client_of(server_url())
        for name in ("notes.txt", "ab/notes.txt", f"ab/{'c' * 32}", f"cc/deep/{'c' * 32}", f"CC/{'C' * 32}"):
            client.put_object(Bucket=bucket(), Key=f"{prefix_of(store)}blobs/{name}", Body=b"not ours")
        client.create_multipart_upload(Bucket=bucket(), Key=f"{prefix_of(store)}blobs/notes.txt")
    assert await places(store) == {place}


async def test_an_empty_folder_is_anybody_s(tmp_path: Path) -> None:
    async with STORES["local"](tmp_path) as store:
        assert await store.register_owner("first") == "first"
        assert await store.register_owner("second") == "second"
        writer = await store.write(store.new_storage_key(), size=1)
        await writer.abort()
        assert await store.register_owner("first") == "second"
    async with STORES["local"](tmp_path) as store:
        assert await store.register_owner("first") == "second"


@pytest.mark.s3
async def test_a_bucket_that_obeys_no_condition_remembers_too() -> None:
    async with STORES["s3"](Path()) as store:
        assert isinstance(store, BucketStore)
        store.conditional_writes = False
        assert await store.register_owner("first") == "first"
        assert await store.register_owner("second") == "first"
