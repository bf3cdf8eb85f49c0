"""Uploads of attempts: what a fence lets in, and what becomes of that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ingot.blobs.model import UploadState
from ingot.blobs.ports import FindBlob, FinishUpload, GetUpload
from ingot.jobs import Claim, LeaseLost
from ingot.kernel.errors import IngotError
from ingot.kernel.ids import new_id
from tests.conformance.depot import HOUR, Depot, content_of, depot, id_of
from tests.factories import LEASE_SECONDS

__all__ = ["depot"]


def for_job(claim: Claim, **values: Any) -> dict[str, Any]:
    """What an upload for an output of an attempt is begun with."""
    return {"job_id": claim.job.id, "fence": claim.fence, "file": "output", "name": "out.txt"} | values


async def test_an_upload_for_a_job_is_begun_only_under_its_fence(depot: Depot) -> None:
    claim = await depot.bench.make_claim()
    queued = await depot.bench.make_job("other")
    other = Depot(depot.bench, (await depot.bench.tenants.create("other")).id)
    begun = await depot.begin(5, **for_job(claim))
    assert (begun.upload.job_id, begun.upload.file, begun.upload.name) == (claim.job.id, "output", "out.txt")
    assert begun.fence == claim.fence
    calls: list[Any] = [
        depot.begin(5, **for_job(claim, fence=claim.fence + 1)),
        depot.begin(5, **for_job(claim, fence=claim.fence - 1)),
        depot.begin(5, **for_job(claim, job_id=queued.id, fence=0)),
        depot.begin(5, **for_job(claim, job_id=new_id())),
        other.begin(5, **for_job(claim)),
    ]
    for call in calls:
        with pytest.raises(LeaseLost):
            await call
    await depot.bench.jobs.complete(claim)
    with pytest.raises(LeaseLost):
        await depot.begin(5, **for_job(claim))
    assert await depot.usage() == (0, 5, 0)


async def test_an_output_is_the_uploads_while_the_attempt_runs(depot: Depot) -> None:
    claim = await depot.bench.make_claim()
    begun = await depot.begin(5, **for_job(claim))
    done = await depot.finish(begun.upload.id, b"12345")
    assert done.key is None
    assert await depot.store.run(FindBlob(tenant=depot.tenant, blob_id=id_of(b"12345"))) is None
    assert await depot.references(id_of(b"12345")) == 1
    assert await depot.usage() == (5, 0, 0)
    assert await depot.news("blob.stored") == []
    assert await depot.sweep() == 0
    assert await depot.collect(grace=0) == []


async def test_an_output_stays_for_as_long_as_its_attempt_runs(depot: Depot) -> None:
    claim = await depot.bench.make_claim()
    begun = await depot.begin(5, **for_job(claim))
    await depot.finish(begun.upload.id, b"12345", lifetime=1)
    depot.bench.clock.advance(days=1)
    assert await depot.sweep() == 0
    assert await depot.state(begun.upload.id) is UploadState.DONE


@pytest.mark.parametrize("how", ["failed", "released", "lost", "claimed again"])
async def test_what_a_lost_attempt_uploads_is_refused_and_swept(depot: Depot, how: str) -> None:
    claim = await depot.bench.make_claim()
    under_way = await depot.begin(5, storage_key="place-1", **for_job(claim))
    done = await depot.begin(5, storage_key="place-2", **for_job(claim, name="done.txt"))
    await depot.finish(done.upload.id, content_of(b"12345", "place-2"))
    if how == "failed":
        await depot.bench.jobs.fail(claim, "broken")
    elif how == "lost":
        depot.bench.clock.advance(seconds=LEASE_SECONDS + 1)
        await depot.bench.jobs.maintain()
    else:
        await depot.bench.jobs.release(claim)
    if how == "claimed again":
        (again,) = await depot.bench.jobs.claim("other", ["noop"])
        assert again.job.id == claim.job.id
    with pytest.raises(LeaseLost):
        await depot.finish(under_way.upload.id, content_of(b"late", "place-1"), epoch=under_way.epoch)
    assert await depot.store.run(GetUpload(tenant=depot.tenant, id=under_way.upload.id)) == under_way
    assert await depot.sweep() == 2
    assert await depot.usage() == (0, 0, 0)
    assert await depot.trash() == ["place-1"]
    assert await depot.condemned() == {id_of(b"12345")}


async def test_each_of_many_at_once_is_judged_by_itself(depot: Depot) -> None:
    await depot.limit(100)
    begun = [await depot.begin(10, key="k7" if n == 7 else f"k{n % 4}") for n in range(8)]
    commands = [
        FinishUpload(
            tenant=depot.tenant,
            id=one.upload.id,
            content=content_of(bytes([n])),
            lifetime=HOUR,
            epoch=one.epoch + (n == 7),
        )
        for n, one in enumerate(begun)
    ]
    answers = await asyncio.gather(*map(depot.store.run, commands), return_exceptions=True)
    refused = [type(answer) for answer in answers if isinstance(answer, IngotError)]
    assert sorted(kind.__name__ for kind in refused) == ["KeyExists"] * 3 + ["UploadTaken"]
    await depot.check()
    assert await depot.usage() == (4, 40, 4)
