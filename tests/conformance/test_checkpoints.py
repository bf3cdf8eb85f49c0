"""Checkpoints: what an attempt saves for later ones of its job, who may save and read it, and when it goes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ingot.blobs.errors import QuotaExceeded
from ingot.blobs.model import UploadState
from ingot.blobs.ports import BeginUpload, FindBlob, FinishUpload, GetBlobMetrics
from ingot.jobs import Claim, Definition, FileNotFound, JobNotFound, JobStatus, LeaseLost
from ingot.jobs.files import CHECKPOINTS_MAX
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from tests.conformance.depot import HOUR, OWNER, Depot, content_of, depot, id_of
from tests.conformance.job_files import SUCCEEDED, claim, status, upload
from tests.conformance.snapshots import refuses
from tests.factories import LEASE_SECONDS

__all__ = ["depot"]


async def start(depot: Depot, **options: Any) -> Claim:
    """A job that runs, whose files are counted."""
    found = await depot.bench.make_claim(**options)
    depot.jobs[found.job.id] = OWNER
    return found


async def save(depot: Depot, claim: Claim, data: bytes, name: str = "checkpoint") -> str:
    """Save something, and answer the id of its upload."""
    return await upload(depot, claim, name, data, "checkpoint")


async def saved(depot: Depot, claim: Claim, name: str = "checkpoint", **who: Any) -> bytes | None:
    """What an attempt reads under a name."""
    _, content = await depot.bench.jobs.open_file(claim.job.id, claim.fence, "checkpoint", name, **who)
    return content.inline


async def end(depot: Depot, claim: Claim, how: str) -> None:
    """End an attempt without a success."""
    jobs = depot.bench.jobs
    if how == "failed":
        await jobs.fail(claim, "broken")
    elif how == "dead":
        await jobs.fail(claim, "broken", retry=False)
    elif how == "released":
        await jobs.release(claim)
    elif how == "snoozed":
        await jobs.snooze(claim, 5)
    elif how == "canceled":
        await jobs.cancel(depot.tenant, claim.job.id)
        await jobs.release(claim)
    else:
        depot.bench.clock.advance(seconds=LEASE_SECONDS + 1)
        await jobs.maintain()


# -- saving and reading -------------------------------------------------------------------------------------


async def test_what_is_saved_is_a_file_at_once_and_no_event_tells_of_it(depot: Depot) -> None:
    found = await start(depot)
    id = await save(depot, found, b"page 1")
    assert await depot.files(found.job.id) == [("checkpoint", "checkpoint", id_of(b"page 1"))]
    assert await saved(depot, found) == b"page 1"
    assert (await depot.finish(id, b"page 1")).upload.state is UploadState.DONE, "finished again it answers the same"
    assert await depot.usage(OWNER) == (6, 0, 0)
    assert await depot.news("blob.stored") == []
    opened = await depot.store.run(FindBlob(tenant=depot.tenant, blob_id=id_of(b"page 1")))
    assert opened is not None
    assert [(one.kind, one.name, one.job_id) for one in opened[1]] == [("checkpoint", "checkpoint", found.job.id)]


async def test_it_takes_the_place_of_one_with_its_name(depot: Depot) -> None:
    found = await start(depot)
    await save(depot, found, b"first")
    await save(depot, found, b"other", "1")
    await save(depot, found, b"second")
    assert await depot.files(found.job.id) == [
        ("checkpoint", "1", id_of(b"other")),
        ("checkpoint", "checkpoint", id_of(b"second")),
    ]
    assert await depot.usage() == (11, 0, 0)
    assert await depot.condemned() == {id_of(b"first")}
    await save(depot, found, b"second")
    assert await saved(depot, found) == b"second", "the same bytes in place of themselves are there still"
    assert await depot.collect(grace=0) == [5]


async def test_of_two_at_once_with_one_name_one_stays(depot: Depot) -> None:
    found = await start(depot)
    for_job: dict[str, Any] = {"job_id": found.job.id, "fence": found.fence, "file": "checkpoint", "name": "same"}
    begun = [await depot.begin(1, **for_job) for _ in range(8)]
    commands = [
        FinishUpload(tenant=depot.tenant, id=one.upload.id, content=content_of(bytes([n])), lifetime=HOUR)
        for n, one in enumerate(begun)
    ]
    done = await asyncio.gather(*map(depot.store.run, commands))
    assert {one.upload.state for one in done} == {UploadState.DONE}
    await depot.check()
    assert await depot.usage() == (1, 0, 0)
    assert len(await depot.files(found.job.id)) == 1


async def test_an_attempt_that_saves_over_and_over_leaves_no_uploads_behind(depot: Depot) -> None:
    found = await start(depot)
    ids = [await save(depot, found, bytes([n]), name) for n in range(3) for name in ("a", "b")]
    assert [await depot.state(id) for id in ids] == [None] * 4 + [UploadState.DONE] * 2
    assert (await depot.store.run(GetBlobMetrics())).uploads == 2


async def test_it_is_saved_and_read_under_its_fence_only(depot: Depot) -> None:
    first = await start(depot, worker="press/1")
    await save(depot, first, b"saved")
    late = await depot.begin(4, job_id=first.job.id, fence=first.fence, file="checkpoint", name="late", storage_key="p")
    await depot.bench.jobs.release(first)
    with pytest.raises(LeaseLost):
        await saved(depot, first)
    second = await claim(depot, first.job, worker="press/2")
    for call in (
        depot.begin(1, job_id=first.job.id, fence=first.fence, file="checkpoint", name="checkpoint"),
        depot.finish(late.upload.id, content_of(b"late", "p"), epoch=late.epoch),
        saved(depot, first),
        saved(depot, second, worker="other"),
    ):
        async with refuses(depot.bench, LeaseLost):
            await call
    other = (await depot.bench.tenants.create("other")).id
    with pytest.raises(JobNotFound):
        await saved(depot, second, tenant=other)
    with pytest.raises(FileNotFound):
        await saved(depot, second, "late")
    assert await saved(depot, second, worker="press") == b"saved"


async def test_other_kinds_are_not_read_as_it(depot: Depot) -> None:
    found = await start(depot)
    await upload(depot, found, "checkpoint", b"out", "output")
    await upload(depot, found, "checkpoint", b"log", "log")
    with pytest.raises(FileNotFound):
        await saved(depot, found)
    await save(depot, found, b"saved")
    with pytest.raises(FileNotFound):
        await depot.bench.jobs.open_file(found.job.id, found.fence, "log", "checkpoint")


# -- how they go --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["failed", "dead", "released", "snoozed", "canceled", "lost"])
async def test_they_stay_for_the_next_attempt_unless_one_succeeds(depot: Depot, how: str) -> None:
    first = await start(depot)
    await save(depot, first, b"page 1", "1")
    await save(depot, first, b"page 2", "2")
    await end(depot, first, how)
    await depot.sweep()
    kept = [("checkpoint", name, id_of(f"page {name}".encode())) for name in ("1", "2")]
    assert await depot.files(first.job.id) == kept
    assert await depot.usage() == (12, 0, 0)
    if how in ("dead", "canceled"):
        await depot.bench.jobs.retry(depot.tenant, first.job.id)
    depot.bench.clock.advance(seconds=3600)
    second = await claim(depot, first.job)
    assert [await saved(depot, second, name) for name in ("1", "2")] == [b"page 1", b"page 2"]
    assert await depot.condemned() == set()
    await depot.bench.jobs.complete(second)
    assert await depot.files(first.job.id) == []


@pytest.mark.parametrize("makes", [True, False])
async def test_a_success_removes_them_and_gives_their_bytes_back(depot: Depot, makes: bool) -> None:
    first, other = await start(depot), await start(depot, type="other")
    await save(depot, other, b"other's")
    await save(depot, first, b"page 1", "1")
    await depot.bench.jobs.release(first)
    second = await claim(depot, first.job)
    await save(depot, second, b"page 2", "2")
    on_its_way = await depot.begin(
        5, job_id=first.job.id, fence=second.fence, file="checkpoint", name="3", storage_key="p"
    )
    if makes:
        await upload(depot, second, "out", b"out")
    settled = await depot.bench.jobs.complete(second, outputs=["out"] if makes else [])
    assert settled.status is SUCCEEDED
    assert await depot.files(first.job.id) == ([("output", "out", id_of(b"out"))] if makes else [])
    await depot.check()
    assert await depot.usage() == (7 + 3 * makes, 5, 0)
    assert await depot.condemned() == {id_of(b"page 1"), id_of(b"page 2")}
    with pytest.raises(LeaseLost):
        await depot.finish(on_its_way.upload.id, content_of(b"page3", "p"), epoch=on_its_way.epoch)
    await depot.sweep()
    assert await depot.usage() == (7 + 3 * makes, 0, 0)
    assert await depot.trash() == ["p"]
    assert await saved(depot, other) == b"other's"
    await depot.bench.jobs.retry(depot.tenant, first.job.id)
    with pytest.raises(FileNotFound):
        await saved(depot, await claim(depot, first.job), "1")


async def test_a_success_that_is_refused_removes_nothing(depot: Depot) -> None:
    found = await start(depot)
    await save(depot, found, b"page 1")
    await depot.bench.jobs.release(found)
    second = await claim(depot, found.job)
    async with refuses(depot.bench, LeaseLost):
        await depot.bench.jobs.complete(found)
    assert await saved(depot, second) == b"page 1"


async def test_they_go_with_their_job(depot: Depot) -> None:
    await depot.bench.jobs.define(Definition(type="noop", retention_seconds=60))
    found = await start(depot)
    await save(depot, found, b"page 1")
    await depot.bench.jobs.fail(found, "broken", retry=False)
    assert await status(depot, found.job) is JobStatus.DEAD
    await depot.sweep()
    depot.bench.clock.advance(seconds=61)
    assert (await depot.bench.jobs.collect()).removed == 1
    await depot.check()
    assert await depot.usage() == (0, 0, 0)
    assert await depot.collect(grace=0) == [6]


# -- limits -------------------------------------------------------------------------------------------------


async def test_they_count_against_the_quota(depot: Depot) -> None:
    found = await start(depot)
    await depot.limit(12)
    await save(depot, found, b"123456")
    await save(depot, found, b"12345")
    with pytest.raises(QuotaExceeded):
        await save(depot, found, b"12345678", "2")
    assert await depot.usage() == (5, 0, 0)
    await depot.bench.jobs.complete(found)
    assert await depot.usage() == (0, 0, 0)


async def test_a_job_has_so_many_and_no_more_but_each_can_be_saved_again(depot: Depot) -> None:
    first = await start(depot)
    half = CHECKPOINTS_MAX // 2
    done = await asyncio.gather(*[depot.store.run(begin(depot, first, f"{n}")) for n in range(half)])
    commands = [
        FinishUpload(tenant=depot.tenant, id=one.upload.id, content=content_of(b""), lifetime=HOUR) for one in done
    ]
    await asyncio.gather(*map(depot.store.run, commands))
    await depot.bench.jobs.release(first)
    second = await claim(depot, first.job)
    orders = [begin(depot, second, f"{n}") for n in range(half - 1, CHECKPOINTS_MAX + 1)]
    answers = await asyncio.gather(*map(depot.store.run, orders), return_exceptions=True)
    (refused,) = [answer for answer in answers if isinstance(answer, BaseException)]
    assert isinstance(refused, InvalidInput)
    assert str(CHECKPOINTS_MAX) in str(refused)
    refused_name = orders[answers.index(refused)].name
    with pytest.raises(InvalidInput):
        await depot.store.run(begin(depot, second, str(refused_name)))
    for name in ("0", f"{half}"):
        again = await depot.store.run(begin(depot, second, name))
        await depot.store.run(
            FinishUpload(tenant=depot.tenant, id=again.upload.id, content=content_of(b""), lifetime=HOUR)
        )
    await depot.store.run(begin(depot, await start(depot, type="other"), "0"))


def begin(depot: Depot, claim: Claim, name: str) -> BeginUpload:
    return BeginUpload(
        id=new_id(),
        tenant=depot.tenant,
        owner=OWNER,
        reserve=0,
        lifetime=HOUR,
        job_id=claim.job.id,
        fence=claim.fence,
        file="checkpoint",
        name=name,
    )
