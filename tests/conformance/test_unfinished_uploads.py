"""A tenant can have a limited number of unfinished uploads."""

from __future__ import annotations

import asyncio

import pytest

from ingot.blobs.errors import TooManyUploads
from ingot.engines.postgres import blobs as postgres_blobs
from ingot.engines.sqlite import uploads as sqlite_uploads
from ingot.kernel.clock import MICROS
from ingot.kernel.ids import new_id
from tests.conformance.blob_fixture import BlobFixture, blobs

__all__ = ["blobs"]

LIMIT = 3


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow few unfinished uploads."""
    for module in (sqlite_uploads, postgres_blobs):
        monkeypatch.setattr(module, "UNFINISHED_UPLOADS_MAX", LIMIT)


async def test_a_tenant_with_too_many_unfinished_uploads_can_begin_no_other(blobs: BlobFixture) -> None:
    ids = [(await blobs.begin(1)).upload.id for _ in range(LIMIT)]
    with pytest.raises(TooManyUploads, match="at most 3 unfinished uploads"):
        await blobs.begin(1)
    assert (await blobs.usage())[1] == LIMIT, "a refused upload reserves nothing"
    assert (await blobs.begin(1, id=ids[0])).upload.id == ids[0], "a repeated command returns the existing upload"
    other = BlobFixture(blobs.bench, (await blobs.bench.tenants.create("other")).id)
    await other.begin(1)


@pytest.mark.parametrize("how", ["finish", "cancel", "fail", "expire"])
async def test_an_upload_that_ends_makes_room_for_another(blobs: BlobFixture, how: str) -> None:
    first = (await blobs.begin(1, lifetime=MICROS)).upload.id
    for _ in range(LIMIT - 1):
        await blobs.begin(1)
    if how == "finish":
        await blobs.finish(first, b"1")
    elif how == "expire":
        blobs.bench.clock.advance(seconds=2)
        assert await blobs.sweep() == 1
    else:
        await blobs.end(first, "wrong_digest" if how == "fail" else None)
    await blobs.begin(1)
    with pytest.raises(TooManyUploads):
        await blobs.begin(1)


async def test_uploads_that_begin_together_do_not_exceed_the_limit(blobs: BlobFixture) -> None:
    begun = await asyncio.gather(*(blobs.begin(1, id=new_id()) for _ in range(3 * LIMIT)), return_exceptions=True)
    assert sum(isinstance(each, TooManyUploads) for each in begun) == 2 * LIMIT
    assert (await blobs.usage())[1] == LIMIT
