"""Uploads of attempts: which calls the fence permits, and what becomes of the uploads when the attempt ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ingot.blobs.model import UploadState
from ingot.blobs.ports import FindBlob, FinishUpload, GetUpload
from ingot.jobs import Claim, LeaseLost
from ingot.kernel.errors import IngotError
from ingot.kernel.ids import new_id
from tests.conformance.blob_fixture import HOUR, BlobFixture, blobs, content_of, id_of
from tests.factories import LEASE_SECONDS

__all__ = ["blobs"]


def for_job(claim: Claim, **values: Any) -> dict[str, Any]:
    """The arguments that begin an upload of an output of an attempt."""
    return {"job_id": claim.job.id, "fence": claim.fence, "file": "output", "name": "out.txt"} | values


async def test_an_upload_for_a_job_requires_its_current_fence(blobs: BlobFixture) -> None:
    claim = await blobs.bench.make_claim()
    queued = await blobs.bench.make_job("other")
    other = BlobFixture(blobs.bench, (await blobs.bench.tenants.create("other")).id)
    begun = await blobs.begin(5, **for_job(claim))
    assert (begun.upload.job_id, begun.upload.file, begun.upload.name) == (claim.job.id, "output", "out.txt")
    assert begun.fence == claim.fence
    calls: list[Any] = [
        blobs.begin(5, **for_job(claim, fence=claim.fence + 1)),
        blobs.begin(5, **for_job(claim, fence=claim.fence - 1)),
        blobs.begin(5, **for_job(claim, job_id=queued.id, fence=0)),
        blobs.begin(5, **for_job(claim, job_id=new_id())),
        other.begin(5, **for_job(claim)),
    ]
    for call in calls:
        with pytest.raises(LeaseLost):
            await call
    await blobs.bench.jobs.complete(claim)
    with pytest.raises(LeaseLost):
        await blobs.begin(5, **for_job(claim))
    assert await blobs.usage() == (0, 5, 0)


async def test_an_output_belongs_to_its_upload_while_the_attempt_runs(blobs: BlobFixture) -> None:
    claim = await blobs.bench.make_claim()
    begun = await blobs.begin(5, **for_job(claim))
    done = await blobs.finish(begun.upload.id, b"12345")
    assert done.key is None
    assert await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=id_of(b"12345"))) is None
    assert await blobs.references(id_of(b"12345")) == 1
    assert await blobs.usage() == (5, 0, 0)
    assert await blobs.news("blob.stored") == []
    assert await blobs.sweep() == 0
    assert await blobs.collect(grace=0) == []


async def test_an_output_is_kept_past_its_lifetime_while_the_attempt_runs(blobs: BlobFixture) -> None:
    claim = await blobs.bench.make_claim()
    begun = await blobs.begin(5, **for_job(claim))
    await blobs.finish(begun.upload.id, b"12345", lifetime=1)
    blobs.bench.clock.advance(days=1)
    assert await blobs.sweep() == 0
    assert await blobs.state(begun.upload.id) is UploadState.DONE


@pytest.mark.parametrize("how", ["failed", "released", "lost", "claimed again"])
async def test_uploads_of_an_ended_attempt_are_refused_and_swept(blobs: BlobFixture, how: str) -> None:
    claim = await blobs.bench.make_claim()
    under_way = await blobs.begin(5, storage_key="place-1", **for_job(claim))
    done = await blobs.begin(5, storage_key="place-2", **for_job(claim, name="done.txt"))
    await blobs.finish(done.upload.id, content_of(b"12345", "place-2"))
    if how == "failed":
        await blobs.bench.jobs.fail(claim, "broken")
    elif how == "lost":
        blobs.bench.clock.advance(seconds=LEASE_SECONDS + 1)
        await blobs.bench.jobs.maintain()
    else:
        await blobs.bench.jobs.release(claim)
    if how == "claimed again":
        (again,) = await blobs.bench.jobs.claim("other", ["noop"])
        assert again.job.id == claim.job.id
    with pytest.raises(LeaseLost):
        await blobs.finish(under_way.upload.id, content_of(b"late", "place-1"), epoch=under_way.epoch)
    assert await blobs.store.run(GetUpload(tenant=blobs.tenant, id=under_way.upload.id)) == under_way
    assert await blobs.sweep() == 2
    assert await blobs.usage() == (0, 0, 0)
    assert await blobs.trash() == ["place-1"]
    assert await blobs.condemned() == {id_of(b"12345")}


async def test_each_of_many_concurrent_finishes_succeeds_or_fails_by_itself(blobs: BlobFixture) -> None:
    await blobs.limit(100)
    begun = [await blobs.begin(10, key="k7" if n == 7 else f"k{n % 4}") for n in range(8)]
    commands = [
        FinishUpload(
            tenant=blobs.tenant,
            id=one.upload.id,
            content=content_of(bytes([n])),
            lifetime=HOUR,
            epoch=one.epoch + (n == 7),
        )
        for n, one in enumerate(begun)
    ]
    answers = await asyncio.gather(*map(blobs.store.run, commands), return_exceptions=True)
    refused = [type(answer) for answer in answers if isinstance(answer, IngotError)]
    assert sorted(kind.__name__ for kind in refused) == ["KeyExists"] * 3 + ["UploadTaken"]
    await blobs.check()
    assert await blobs.usage() == (4, 40, 4)
