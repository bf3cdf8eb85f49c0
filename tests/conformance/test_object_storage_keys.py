"""Storage keys and the owner of an object store."""

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
    """Each object store in turn."""
    async with STORES[request.param](tmp_path / "data") as store:
        yield store


async def list_storage_keys(store: ObjectStore) -> set[str]:
    return {storage_key async for storage_key, _ in store.list_objects()}


async def test_an_object_store_belongs_to_the_first_database(store: ObjectStore) -> None:
    await put(store, b"1")
    assert await store.register_owner("first") == "first"
    assert await store.register_owner("second") == "first"
    assert await store.register_owner("first") == "first"


async def test_the_owner_mark_is_not_listed_as_an_object(store: ObjectStore) -> None:
    await store.register_owner("first")
    assert await list_storage_keys(store) == set()
    storage_key = await put(store, b"1")
    assert await list_storage_keys(store) == {storage_key}


async def test_listing_objects_can_end_early(store: ObjectStore) -> None:
    storage_keys = {await put(store, b"%d" % n) for n in range(3)}
    async with aclosing(store.list_objects()) as found:
        assert (await anext(found))[0] in storage_keys
    assert await list_storage_keys(store) == storage_keys


async def test_foreign_files_are_not_listed(store: ObjectStore, tmp_path: Path) -> None:
    """A listed object without a row would be deleted as an orphan."""
    storage_key = await put(store, b"1")
    if isinstance(store, LocalStore):
        for name in ("aa/notes.txt", f"aa/{new_id()[:-2]}bb", "uploads/notes.txt"):
            (tmp_path / "data/blobs" / name).write_text("not ours")
    else:
        assert isinstance(store, BucketStore)
        client = client_of(server_url())
        for name in ("notes.txt", "ab/notes.txt", f"ab/{'c' * 32}", f"cc/deep/{'c' * 32}", f"CC/{'C' * 32}"):
            client.put_object(Bucket=bucket(), Key=f"{prefix_of(store)}blobs/{name}", Body=b"not ours")
        client.create_multipart_upload(Bucket=bucket(), Key=f"{prefix_of(store)}blobs/notes.txt")
    assert await list_storage_keys(store) == {storage_key}


async def test_an_empty_folder_can_get_another_owner(tmp_path: Path) -> None:
    async with STORES["local"](tmp_path) as store:
        assert await store.register_owner("first") == "first"
        assert await store.register_owner("second") == "second"
        writer = await store.write(store.new_storage_key(), size=1)
        await writer.abort()
        assert await store.register_owner("first") == "second"
    async with STORES["local"](tmp_path) as store:
        assert await store.register_owner("first") == "second"


@pytest.mark.s3
async def test_a_bucket_without_conditional_writes_keeps_its_owner() -> None:
    async with STORES["s3"](Path()) as store:
        assert isinstance(store, BucketStore)
        store.conditional_writes = False
        assert await store.register_owner("first") == "first"
        assert await store.register_owner("second") == "first"
