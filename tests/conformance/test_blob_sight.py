"""Who may know of some references finds a blob by these, however many others there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingot.blobs.model import BlobScope
from ingot.blobs.ports import FindBlob
from ingot.identity.grants import Grant, allowed_prefixes
from tests.conformance.blob_files import BLOB, DATA, give_file
from tests.conformance.depot import Depot, content_of, depot, id_of

__all__ = ["depot"]

NAMES = ["a", "a/b", "a.b", "ab", "a/b/c", "a%", "a_b", "ä/ö", "äö", "A", "b", "ab/a"]
NOTHING = BlobScope(keys=(), uploads=False, types=())


async def names(depot: Depot, data: bytes, sight: BlobScope) -> set[str]:
    found = await depot.store.run(FindBlob(tenant=depot.tenant, blob_id=id_of(data), scope=sight))
    return set() if found is None else {one.name for one in found[1]}


@pytest.mark.parametrize("resource", ["a", "a/b", "a.", "ab", "a%", "a_", "ä", "b", "c"])
async def test_keys_are_in_sight_as_grants_say(depot: Depot, resource: str) -> None:
    for name in NAMES:
        await depot.put(name, b"same")
    grant = Grant(action="blobs.read", resource=f"keys/{resource}")
    below = allowed_prefixes("keys", [grant], "blobs.read")
    assert below is not None
    expected = {name for name in NAMES if grant.covers("blobs.read", f"keys/{name}")}
    assert await names(depot, b"same", BlobScope(keys=below, uploads=False, types=())) == expected
    assert await names(depot, b"same", BlobScope(keys=("nowhere", *below))) == expected
    assert await names(depot, b"same", NOTHING) == set()


async def test_one_key_in_sight_is_found_among_many(depot: Depot) -> None:
    for n in range(110):
        await depot.put(f"other/{n}", b"same")
    await depot.put("pub/z", b"same")
    assert await names(depot, b"same", BlobScope(keys=("pub",), uploads=False, types=())) == {"pub/z"}


async def test_uploads_and_files_are_in_sight_by_themselves(depot: Depot, tmp_path: Path) -> None:
    done = await depot.begin(len(DATA))
    await depot.finish(done.upload.id, content_of(DATA))
    await give_file(depot, tmp_path, await depot.bench.make_job("press.daily"), "input")
    assert id_of(DATA) == BLOB
    assert await names(depot, DATA, BlobScope(keys=(), types=())) == {done.upload.id}
    assert await names(depot, DATA, BlobScope(keys=(), uploads=False, types=("press",))) == {"a.txt"}
    assert await names(depot, DATA, BlobScope(keys=(), uploads=False, types=("pres", "press.d"))) == set()
    assert await names(depot, DATA, BlobScope(keys=(), uploads=False)) == {"a.txt"}


def test_the_names_that_grants_allow() -> None:
    some = [Grant(action="blobs.read", resource="keys/a/"), Grant(action="jobs.*", resource="jobs/b")]
    assert allowed_prefixes("keys", some, "blobs.read") == ("a",)
    assert allowed_prefixes("jobs", some, "jobs.read") == ("b",)
    assert allowed_prefixes("jobs", some, "blobs.read") == ()
    for whole in ("*", "keys", "keys/"):
        assert allowed_prefixes("keys", [*some, Grant(action="*", resource=whole)], "blobs.read") is None
