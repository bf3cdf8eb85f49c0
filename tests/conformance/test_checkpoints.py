"""Checkpoints: what an attempt saves for later attempts, which calls may save and read it, and when it is removed."""

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
from tests.conformance.blob_fixture import HOUR, OWNER, BlobFixture, blobs, content_of, id_of
from tests.conformance.job_files import SUCCEEDED, claim, status, upload
from tests.conformance.snapshots import refuses
from tests.factories import LEASE_SECONDS

__all__ = ["blobs"]


async def start(blobs: BlobFixture, **options: Any) -> Claim:
    """Start a job whose files are included in the recount of usage."""
    claim = await blobs.bench.make_claim(**options)
    blobs.jobs[claim.job.id] = OWNER
    return claim


async def save(blobs: BlobFixture, claim: Claim, data: bytes, name: str = "checkpoint") -> str:
    """Save a checkpoint, and return the ID of its upload."""
    return await upload(blobs, claim, name, data, "checkpoint")


async def read_checkpoint(blobs: BlobFixture, claim: Claim, name: str = "checkpoint", **who: Any) -> bytes | None:
    """The bytes of a checkpoint as an attempt reads them."""
    _, content = await blobs.bench.jobs.open_file(claim.job.id, claim.fence, "checkpoint", name, **who)
    return content.inline


async def end_attempt(blobs: BlobFixture, claim: Claim, how: str) -> None:
    """End an attempt unsuccessfully."""
    jobs = blobs.bench.jobs
    if how == "failed":
        await jobs.fail(claim, "broken")
    elif how == "dead":
        await jobs.fail(claim, "broken", retry=False)
    elif how == "released":
        await jobs.release(claim)
    elif how == "snoozed":
        await jobs.snooze(claim, 5)
    elif how == "canceled":
        await jobs.cancel(blobs.tenant, claim.job.id)
        await jobs.release(claim)
    else:
        blobs.bench.clock.advance(seconds=LEASE_SECONDS + 1)
        await jobs.maintain()


# -- saving and reading -------------------------------------------------------------------------------------


async def test_a_checkpoint_is_a_file_at_once_and_publishes_no_event(blobs: BlobFixture) -> None:
    claim = await start(blobs)
    id = await save(blobs, claim, b"page 1")
    assert await blobs.files(claim.job.id) == [("checkpoint", "checkpoint", id_of(b"page 1"))]
    assert await read_checkpoint(blobs, claim) == b"page 1"
    assert (await blobs.finish(id, b"page 1")).upload.state is UploadState.DONE, (
        "a repeated finish returns the same upload"
    )
    assert await blobs.usage(OWNER) == (6, 0, 0)
    assert await blobs.news("blob.stored") == []
    opened = await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=id_of(b"page 1")))
    assert opened is not None
    assert [(one.kind, one.name, one.job_id) for one in opened[1]] == [("checkpoint", "checkpoint", claim.job.id)]


async def test_a_checkpoint_replaces_the_one_with_the_same_name(blobs: BlobFixture) -> None:
    claim = await start(blobs)
    await save(blobs, claim, b"first")
    await save(blobs, claim, b"other", "1")
    await save(blobs, claim, b"second")
    assert await blobs.files(claim.job.id) == [
        ("checkpoint", "1", id_of(b"other")),
        ("checkpoint", "checkpoint", id_of(b"second")),
    ]
    assert await blobs.usage() == (11, 0, 0)
    assert await blobs.condemned() == {id_of(b"first")}
    await save(blobs, claim, b"second")
    assert await read_checkpoint(blobs, claim) == b"second", "replacing a checkpoint by the same bytes keeps them"
    assert await blobs.collect(grace=0) == [5]


async def test_concurrent_checkpoints_with_one_name_leave_one_file(blobs: BlobFixture) -> None:
    claim = await start(blobs)
    for_job: dict[str, Any] = {"job_id": claim.job.id, "fence": claim.fence, "file": "checkpoint", "name": "same"}
    begun = [await blobs.begin(1, **for_job) for _ in range(8)]
    commands = [
        FinishUpload(tenant=blobs.tenant, id=one.upload.id, content=content_of(bytes([n])), lifetime=HOUR)
        for n, one in enumerate(begun)
    ]
    done = await asyncio.gather(*map(blobs.store.run, commands))
    assert {one.upload.state for one in done} == {UploadState.DONE}
    await blobs.check()
    assert await blobs.usage() == (1, 0, 0)
    assert len(await blobs.files(claim.job.id)) == 1


async def test_repeated_saves_leave_one_upload_per_name(blobs: BlobFixture) -> None:
    claim = await start(blobs)
    ids = [await save(blobs, claim, bytes([n]), name) for n in range(3) for name in ("a", "b")]
    assert [await blobs.state(id) for id in ids] == [None] * 4 + [UploadState.DONE] * 2
    assert (await blobs.store.run(GetBlobMetrics())).uploads == 2


async def test_a_checkpoint_is_saved_and_read_only_under_the_current_fence(blobs: BlobFixture) -> None:
    first = await start(blobs, worker="press/1")
    await save(blobs, first, b"saved")
    late = await blobs.begin(4, job_id=first.job.id, fence=first.fence, file="checkpoint", name="late", storage_key="p")
    await blobs.bench.jobs.release(first)
    with pytest.raises(LeaseLost):
        await read_checkpoint(blobs, first)
    second = await claim(blobs, first.job, worker="press/2")
    for call in (
        blobs.begin(1, job_id=first.job.id, fence=first.fence, file="checkpoint", name="checkpoint"),
        blobs.finish(late.upload.id, content_of(b"late", "p"), epoch=late.epoch),
        read_checkpoint(blobs, first),
        read_checkpoint(blobs, second, worker="other"),
    ):
        async with refuses(blobs.bench, LeaseLost):
            await call
    other = (await blobs.bench.tenants.create("other")).id
    with pytest.raises(JobNotFound):
        await read_checkpoint(blobs, second, tenant=other)
    with pytest.raises(FileNotFound):
        await read_checkpoint(blobs, second, "late")
    assert await read_checkpoint(blobs, second, worker="press") == b"saved"


async def test_outputs_and_logs_cannot_be_read_as_checkpoints(blobs: BlobFixture) -> None:
    claim = await start(blobs)
    await upload(blobs, claim, "checkpoint", b"out", "output")
    await upload(blobs, claim, "checkpoint", b"log", "log")
    with pytest.raises(FileNotFound):
        await read_checkpoint(blobs, claim)
    await save(blobs, claim, b"saved")
    with pytest.raises(FileNotFound):
        await blobs.bench.jobs.open_file(claim.job.id, claim.fence, "log", "checkpoint")


# -- removal ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["failed", "dead", "released", "snoozed", "canceled", "lost"])
async def test_checkpoints_are_kept_for_the_next_attempt_until_one_succeeds(blobs: BlobFixture, how: str) -> None:
    first = await start(blobs)
    await save(blobs, first, b"page 1", "1")
    await save(blobs, first, b"page 2", "2")
    await end_attempt(blobs, first, how)
    await blobs.sweep()
    kept = [("checkpoint", name, id_of(f"page {name}".encode())) for name in ("1", "2")]
    assert await blobs.files(first.job.id) == kept
    assert await blobs.usage() == (12, 0, 0)
    if how in ("dead", "canceled"):
        await blobs.bench.jobs.retry(blobs.tenant, first.job.id)
    blobs.bench.clock.advance(seconds=3600)
    second = await claim(blobs, first.job)
    assert [await read_checkpoint(blobs, second, name) for name in ("1", "2")] == [b"page 1", b"page 2"]
    assert await blobs.condemned() == set()
    await blobs.bench.jobs.complete(second)
    assert await blobs.files(first.job.id) == []


@pytest.mark.parametrize("has_output", [True, False])
async def test_a_success_removes_checkpoints_and_frees_their_usage(blobs: BlobFixture, has_output: bool) -> None:
    first, other = await start(blobs), await start(blobs, type="other")
    await save(blobs, other, b"other's")
    await save(blobs, first, b"page 1", "1")
    await blobs.bench.jobs.release(first)
    second = await claim(blobs, first.job)
    await save(blobs, second, b"page 2", "2")
    unfinished = await blobs.begin(
        5, job_id=first.job.id, fence=second.fence, file="checkpoint", name="3", storage_key="p"
    )
    if has_output:
        await upload(blobs, second, "out", b"out")
    settled = await blobs.bench.jobs.complete(second, outputs=["out"] if has_output else [])
    assert settled.status is SUCCEEDED
    assert await blobs.files(first.job.id) == ([("output", "out", id_of(b"out"))] if has_output else [])
    await blobs.check()
    assert await blobs.usage() == (7 + 3 * has_output, 5, 0)
    assert await blobs.condemned() == {id_of(b"page 1"), id_of(b"page 2")}
    with pytest.raises(LeaseLost):
        await blobs.finish(unfinished.upload.id, content_of(b"page3", "p"), epoch=unfinished.epoch)
    await blobs.sweep()
    assert await blobs.usage() == (7 + 3 * has_output, 0, 0)
    assert await blobs.trash() == ["p"]
    assert await read_checkpoint(blobs, other) == b"other's"
    await blobs.bench.jobs.retry(blobs.tenant, first.job.id)
    with pytest.raises(FileNotFound):
        await read_checkpoint(blobs, await claim(blobs, first.job), "1")


async def test_a_refused_completion_removes_no_checkpoints(blobs: BlobFixture) -> None:
    first = await start(blobs)
    await save(blobs, first, b"page 1")
    await blobs.bench.jobs.release(first)
    second = await claim(blobs, first.job)
    async with refuses(blobs.bench, LeaseLost):
        await blobs.bench.jobs.complete(first)
    assert await read_checkpoint(blobs, second) == b"page 1"


async def test_checkpoints_are_removed_with_their_job(blobs: BlobFixture) -> None:
    await blobs.bench.jobs.define(Definition(type="noop", retention_seconds=60))
    claim = await start(blobs)
    await save(blobs, claim, b"page 1")
    await blobs.bench.jobs.fail(claim, "broken", retry=False)
    assert await status(blobs, claim.job) is JobStatus.DEAD
    await blobs.sweep()
    blobs.bench.clock.advance(seconds=61)
    assert (await blobs.bench.jobs.collect()).removed == 1
    await blobs.check()
    assert await blobs.usage() == (0, 0, 0)
    assert await blobs.collect(grace=0) == [6]


# -- limits -------------------------------------------------------------------------------------------------


async def test_checkpoints_count_against_the_quota(blobs: BlobFixture) -> None:
    claim = await start(blobs)
    await blobs.limit(12)
    await save(blobs, claim, b"123456")
    await save(blobs, claim, b"12345")
    with pytest.raises(QuotaExceeded):
        await save(blobs, claim, b"12345678", "2")
    assert await blobs.usage() == (5, 0, 0)
    await blobs.bench.jobs.complete(claim)
    assert await blobs.usage() == (0, 0, 0)


async def test_a_job_at_the_checkpoint_limit_can_only_replace_existing_ones(blobs: BlobFixture) -> None:
    first = await start(blobs)
    half = CHECKPOINTS_MAX // 2
    done = await asyncio.gather(*[blobs.store.run(begin(blobs, first, f"{n}")) for n in range(half)])
    commands = [
        FinishUpload(tenant=blobs.tenant, id=one.upload.id, content=content_of(b""), lifetime=HOUR) for one in done
    ]
    await asyncio.gather(*map(blobs.store.run, commands))
    await blobs.bench.jobs.release(first)
    second = await claim(blobs, first.job)
    orders = [begin(blobs, second, f"{n}") for n in range(half - 1, CHECKPOINTS_MAX + 1)]
    answers = await asyncio.gather(*map(blobs.store.run, orders), return_exceptions=True)
    (refused,) = [answer for answer in answers if isinstance(answer, BaseException)]
    assert isinstance(refused, InvalidInput)
    assert str(CHECKPOINTS_MAX) in str(refused)
    refused_name = orders[answers.index(refused)].name
    with pytest.raises(InvalidInput):
        await blobs.store.run(begin(blobs, second, str(refused_name)))
    for name in ("0", f"{half}"):
        again = await blobs.store.run(begin(blobs, second, name))
        await blobs.store.run(
            FinishUpload(tenant=blobs.tenant, id=again.upload.id, content=content_of(b""), lifetime=HOUR)
        )
    await blobs.store.run(begin(blobs, await start(blobs, type="other"), "0"))


def begin(blobs: BlobFixture, claim: Claim, name: str) -> BeginUpload:
    return BeginUpload(
        id=new_id(),
        tenant=blobs.tenant,
        owner=OWNER,
        reserve=0,
        lifetime=HOUR,
        job_id=claim.job.id,
        fence=claim.fence,
        file="checkpoint",
        name=name,
    )
