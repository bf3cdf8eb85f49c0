"""A caller with limited grants finds a blob only through references in its scope, however many others exist."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ingot.blobs.model import BlobScope
from ingot.blobs.ports import FindBlob
from ingot.identity.grants import Grant, allowed_prefixes
from tests.conformance.blob_files import BLOB, DATA, give_file
from tests.conformance.blob_fixture import OWNER, BlobFixture, blobs, content_of, id_of

__all__ = ["blobs"]

NAMES = ["a", "a/b", "a.b", "ab", "a/b/c", "a%", "a_b", "ä/ö", "äö", "A", "b", "ab/a"]
NOTHING = BlobScope(keys=(), uploads=False, types=())


async def names(blobs: BlobFixture, data: bytes, scope: BlobScope) -> set[str]:
    found = await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=id_of(data), scope=scope))
    return set() if found is None else {one.name for one in found[1]}


@pytest.mark.parametrize("resource", ["a", "a/b", "a.", "ab", "a%", "a_", "ä", "b", "c"])
async def test_the_scope_includes_exactly_the_keys_that_a_grant_covers(blobs: BlobFixture, resource: str) -> None:
    for name in NAMES:
        await blobs.put(name, b"same")
    grant = Grant(action="blobs.read", resource=f"keys/{resource}")
    below = allowed_prefixes("keys", [grant], "blobs.read")
    assert below is not None
    expected = {name for name in NAMES if grant.covers("blobs.read", f"keys/{name}")}
    assert await names(blobs, b"same", BlobScope(keys=below, uploads=False, types=())) == expected
    assert await names(blobs, b"same", BlobScope(keys=("nowhere", *below))) == expected
    assert await names(blobs, b"same", NOTHING) == set()


async def test_one_key_in_scope_is_found_among_a_hundred_others(blobs: BlobFixture) -> None:
    for n in range(110):
        await blobs.put(f"other/{n}", b"same")
    await blobs.put("pub/z", b"same")
    assert await names(blobs, b"same", BlobScope(keys=("pub",), uploads=False, types=())) == {"pub/z"}


async def test_the_scope_includes_uploads_and_job_files_separately(blobs: BlobFixture, tmp_path: Path) -> None:
    done = await blobs.begin(len(DATA))
    await blobs.finish(done.upload.id, content_of(DATA))
    await give_file(blobs, tmp_path, await blobs.bench.make_job("press.daily"), "input")
    assert id_of(DATA) == BLOB
    assert await names(blobs, DATA, BlobScope(keys=(), types=())) == {done.upload.id}
    assert await names(blobs, DATA, BlobScope(keys=(), uploads=False, types=("press",))) == {"a.txt"}
    assert await names(blobs, DATA, BlobScope(keys=(), uploads=False, types=("pres", "press.d"))) == set()
    assert await names(blobs, DATA, BlobScope(keys=(), uploads=False)) == {"a.txt"}


async def test_the_scope_of_an_owner_includes_only_its_own_references(blobs: BlobFixture, tmp_path: Path) -> None:
    await blobs.put("of-zoe", DATA, owner="token:zoe")
    done = await blobs.begin(len(DATA), owner="token:zoe")
    await blobs.finish(done.upload.id, content_of(DATA))
    job, other = await blobs.bench.make_job(), await blobs.bench.make_job()
    await give_file(blobs, tmp_path, job, "input")

    async def names_in(**fields: str) -> set[str]:
        return await names(blobs, DATA, msgspec.structs.replace(NOTHING, **fields))

    assert await names_in(owner="token:zoe") == {"of-zoe", done.upload.id}
    assert await names_in(owner=OWNER) == {"a.txt"}
    assert await names_in(owner="a") == set()
    assert await names_in(job_id=job.id) == {"a.txt"}
    assert await names_in(job_id=other.id) == set()
    assert await names_in(owner="token:zoe", job_id=job.id) == {"of-zoe", done.upload.id, "a.txt"}


def test_allowed_prefixes_reflect_actions_and_resources() -> None:
    some = [Grant(action="blobs.read", resource="keys/a/"), Grant(action="jobs.*", resource="jobs/b")]
    assert allowed_prefixes("keys", some, "blobs.read") == ("a",)
    assert allowed_prefixes("jobs", some, "jobs.read") == ("b",)
    assert allowed_prefixes("jobs", some, "blobs.read") == ()
    for whole in ("*", "keys", "keys/"):
        assert allowed_prefixes("keys", [*some, Grant(action="*", resource=whole)], "blobs.read") is None
