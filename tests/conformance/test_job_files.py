"""Files of jobs: what an attempt reads and stores, and which calls its fence permits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ingot.blobs.model import BlobEventData, UploadState
from ingot.blobs.ports import FindBlob
from ingot.jobs import Definition, Done, FileNotFound, JobNotFound, LeaseLost, OutputMissing, Settle, Settled
from ingot.jobs.files import OUTPUTS_MAX
from ingot.kernel.errors import IngotError, InvalidInput
from ingot.kernel.ids import new_id
from tests.conformance.blob_fixture import OWNER, BlobFixture, blobs, content_of, id_of, stored
from tests.conformance.job_files import BLOB, DATA, RUNNING, SIZE, SUCCEEDED, claim, status, upload
from tests.conformance.snapshots import refuses, snapshot
from tests.factories import LEASE_SECONDS

__all__ = ["blobs"]


# -- reading ------------------------------------------------------------------------------------------------


async def test_an_input_can_be_opened_only_under_the_current_fence(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    (enqueued,) = await blobs.enqueue(blobs.order(inputs={"in.txt": BLOB}))
    jobs = blobs.bench.jobs
    with pytest.raises(LeaseLost):
        await jobs.open_file(enqueued.job.id, 1, "input", "in.txt")
    running = await claim(blobs, enqueued.job, worker="press/1")
    file, content = await jobs.open_file(enqueued.job.id, running.fence, "input", "in.txt", tenant=blobs.tenant)
    assert (file.kind, file.name, file.blob_id, file.size) == ("input", "in.txt", BLOB, SIZE)
    assert stored(content) == content_of(DATA)
    assert await jobs.open_file(enqueued.job.id, running.fence, "input", "in.txt", worker="press")
    other = (await blobs.bench.tenants.create("other")).id
    refused: list[tuple[type[IngotError], dict[str, Any]]] = [
        (LeaseLost, {"fence": running.fence + 1}),
        (LeaseLost, {"fence": running.fence - 1}),
        (LeaseLost, {"worker": "other"}),
        (JobNotFound, {"tenant": other}),
        (JobNotFound, {"job_id": new_id()}),
        (JobNotFound, {"job_id": "x"}),
        (FileNotFound, {"name": "other.txt"}),
        (FileNotFound, {"kind": "payload"}),
        (FileNotFound, {"kind": "output"}),
    ]
    good = {"job_id": enqueued.job.id, "fence": running.fence, "kind": "input", "name": "in.txt"}
    for kind, change in refused:
        with pytest.raises(kind):
            await jobs.open_file(**(good | change))  # type: ignore[arg-type]
    await jobs.release(running)
    with pytest.raises(LeaseLost):
        await jobs.open_file(enqueued.job.id, running.fence, "input", "in.txt")


async def test_a_running_job_is_found_only_under_its_current_fence(blobs: BlobFixture) -> None:
    first = await blobs.bench.make_claim(worker="press/1")
    jobs = blobs.bench.jobs
    running = await jobs.get_running_job(first.job.id, first.fence, worker="press")
    assert (running.job_id, running.tenant, running.type, running.attempt) == (
        first.job.id,
        blobs.tenant,
        "noop",
        1,
    )
    other = (await blobs.bench.tenants.create("other")).id
    for kind, change in (
        (LeaseLost, {"fence": first.fence + 1}),
        (LeaseLost, {"worker": "other"}),
        (JobNotFound, {"tenant": other}),
        (JobNotFound, {"job_id": new_id()}),
        (JobNotFound, {"job_id": "x"}),
    ):
        with pytest.raises(kind):
            await jobs.get_running_job(**({"job_id": first.job.id, "fence": first.fence} | change))  # type: ignore[arg-type]
    await jobs.release(first)
    (again,) = await jobs.claim("worker", ["noop"])
    assert (await jobs.get_running_job(again.job.id, again.fence)).attempt == 2
    with pytest.raises(LeaseLost):
        await jobs.get_running_job(first.job.id, first.fence)


async def test_files_can_be_listed_only_in_their_tenant(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    (enqueued,) = await blobs.enqueue(blobs.order(inputs={"in.txt": BLOB}))
    other = (await blobs.bench.tenants.create("other")).id
    for tenant, job in (
        (other, enqueued.job.id),
        (blobs.tenant, new_id()),
        (blobs.tenant, "x"),
        (new_id(), enqueued.job.id),
    ):
        with pytest.raises(JobNotFound):
            await blobs.bench.jobs.files(tenant, job)


# -- outputs ------------------------------------------------------------------------------------------------


async def test_outputs_become_visible_when_their_attempt_succeeds(blobs: BlobFixture) -> None:
    running = await blobs.bench.make_claim()
    blobs.jobs[running.job.id] = OWNER
    uploads = [await upload(blobs, running, name, name.encode()) for name in ("b.txt", "a.txt")]
    late = await blobs.begin(
        5, job_id=running.job.id, fence=running.fence, file="output", name="late", storage_key="late"
    )
    assert await blobs.files(running.job.id) == []
    assert await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=id_of(b"a.txt"))) is None
    assert await blobs.news("blob.stored") == []
    usage = await blobs.usage()
    settled = await blobs.bench.jobs.complete(running, outputs=["a.txt", "b.txt"])
    assert settled.status is SUCCEEDED
    await blobs.check()
    assert await blobs.usage() == usage
    assert await blobs.files(running.job.id) == [
        ("output", "a.txt", id_of(b"a.txt")),
        ("output", "b.txt", id_of(b"b.txt")),
    ]
    events = {
        (one.blob_id, one.job_id, one.name) for one in await blobs.news("blob.stored") if isinstance(one, BlobEventData)
    }
    assert events == {(id_of(name.encode()), running.job.id, name) for name in ("a.txt", "b.txt")}
    opened = await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=id_of(b"a.txt")))
    assert opened is not None
    assert [(one.kind, one.name, one.job_type) for one in opened[1]] == [("output", "a.txt", "noop")]
    assert await blobs.references(id_of(b"a.txt")) == 1
    assert await blobs.sweep() >= 1
    assert [await blobs.state(one) for one in (*uploads, late.upload.id)] == [None, None, None]
    assert await blobs.trash() == ["late"]
    assert await blobs.usage() == (10, 0, 0)
    assert await blobs.condemned() == set()
    assert len(await blobs.files(running.job.id)) == 2


async def test_outputs_not_named_by_the_completion_become_files_too(blobs: BlobFixture) -> None:
    running = await blobs.bench.make_claim()
    blobs.jobs[running.job.id] = OWNER
    await upload(blobs, running, "a.txt", b"12345")
    await blobs.bench.jobs.complete(running)
    assert await blobs.files(running.job.id) == [("output", "a.txt", id_of(b"12345"))]


async def test_a_completion_with_a_missing_output_settles_nothing(blobs: BlobFixture) -> None:
    running = await blobs.bench.make_claim()
    blobs.jobs[running.job.id] = OWNER
    await upload(blobs, running, "log", b"12345", "log")
    begun = await blobs.begin(5, job_id=running.job.id, fence=running.fence, file="output", name="a.txt")
    for outputs in (["a.txt"], ["log"], ["nothing", "a.txt"]):
        async with refuses(blobs.bench, OutputMissing):
            await blobs.bench.jobs.complete(running, "x", outputs=outputs)
    assert await status(blobs, running.job) is RUNNING
    await blobs.finish(begun.upload.id, b"1234")
    await blobs.bench.jobs.complete(running, "x", outputs=["a.txt"])
    assert await status(blobs, running.job) is SUCCEEDED
    await blobs.check()


async def test_a_missing_output_of_one_settle_does_not_affect_others(blobs: BlobFixture) -> None:
    claims = [await blobs.bench.make_claim() for _ in range(3)]
    for running in claims:
        blobs.jobs[running.job.id] = OWNER
    await upload(blobs, claims[0], "a.txt", b"12345")
    settles = [Settle(job_id=one.job.id, fence=one.fence, outcome=Done(outputs=("a.txt",))) for one in claims[:2]]
    settles += [Settle(job_id=claims[2].job.id, fence=claims[2].fence, outcome=Done())]
    answers = await blobs.bench.jobs.settle_many(settles)
    assert [type(answer) for answer in answers] == [Settled, OutputMissing, Settled]
    assert [await status(blobs, one.job) for one in claims] == [SUCCEEDED, RUNNING, SUCCEEDED]
    await blobs.check()


async def test_a_repeated_completion_with_outputs_returns_the_same_result(blobs: BlobFixture) -> None:
    running = await blobs.bench.make_claim()
    blobs.jobs[running.job.id] = OWNER
    await upload(blobs, running, "a.txt", b"12345")
    first = await blobs.bench.jobs.complete(running, 1, outputs=["a.txt"])
    before = await snapshot(blobs.bench)
    assert await blobs.bench.jobs.complete(running, 1, outputs=["a.txt"]) == first
    assert await snapshot(blobs.bench) == before
    assert await blobs.files(running.job.id) == [("output", "a.txt", id_of(b"12345"))]


@pytest.mark.parametrize("how", ["failed", "released", "lost"])
async def test_outputs_of_an_unsuccessful_attempt_are_discarded(blobs: BlobFixture, how: str) -> None:
    first = await blobs.bench.make_claim()
    blobs.jobs[first.job.id] = OWNER
    await upload(blobs, first, "old.txt", b"old")
    await upload(blobs, first, "both.txt", b"first")
    if how == "failed":
        await blobs.bench.jobs.fail(first, "broken")
    elif how == "released":
        await blobs.bench.jobs.release(first)
    else:
        blobs.bench.clock.advance(seconds=LEASE_SECONDS + 1)
        await blobs.bench.jobs.maintain()
    blobs.bench.clock.advance(seconds=60)
    second = await claim(blobs, first.job)
    await upload(blobs, second, "both.txt", b"second")
    with pytest.raises(LeaseLost):
        await blobs.bench.jobs.complete(first, outputs=["old.txt"])
    with pytest.raises(OutputMissing):
        await blobs.bench.jobs.complete(second, outputs=["old.txt"])
    await blobs.bench.jobs.complete(second, outputs=["both.txt"])
    assert await blobs.files(first.job.id) == [("output", "both.txt", id_of(b"second"))]
    await blobs.sweep()
    assert await blobs.usage() == (6, 0, 0)
    assert await blobs.condemned() == {id_of(b"old"), id_of(b"first")}
    assert [one.name for one in await blobs.news("blob.stored") if isinstance(one, BlobEventData)] == ["both.txt"]


@pytest.mark.parametrize("has_output", [True, False])
async def test_outputs_of_a_retried_job_replace_the_earlier_ones(blobs: BlobFixture, has_output: bool) -> None:
    first = await blobs.bench.make_claim()
    blobs.jobs[first.job.id] = OWNER
    await upload(blobs, first, "old.txt", b"old")
    await upload(blobs, first, "both.txt", b"first")
    await upload(blobs, first, "1", b"log", "log")
    await blobs.bench.jobs.complete(first)
    await blobs.bench.jobs.retry(blobs.tenant, first.job.id)
    assert len(await blobs.files(first.job.id)) == 3
    second = await claim(blobs, first.job)
    if has_output:
        await upload(blobs, second, "both.txt", b"second")
    await blobs.bench.jobs.complete(second)
    await blobs.check()
    outputs = [("output", "both.txt", id_of(b"second"))] if has_output else []
    assert await blobs.files(first.job.id) == [("log", "1", id_of(b"log")), *outputs]
    assert await blobs.condemned() == {id_of(b"old"), id_of(b"first")}


async def test_the_last_of_several_outputs_with_one_name_is_kept(blobs: BlobFixture) -> None:
    running = await blobs.bench.make_claim()
    blobs.jobs[running.job.id] = OWNER
    for data in (b"first", b"second", b"third"):
        await upload(blobs, running, "out.txt", data)
        blobs.bench.clock.advance(seconds=1)
    await blobs.bench.jobs.complete(running, outputs=["out.txt"])
    await blobs.check()
    assert await blobs.files(running.job.id) == [("output", "out.txt", id_of(b"third"))]
    await blobs.sweep()
    assert await blobs.usage() == (5, 0, 0)
    assert await blobs.condemned() == {id_of(b"first"), id_of(b"second")}


async def test_an_attempt_can_upload_at_most_outputs_max_outputs(blobs: BlobFixture) -> None:
    running = await blobs.bench.make_claim()
    orders = [
        blobs.upload_of(
            blobs.order(), "x", 0, job_id=running.job.id, fence=running.fence, file="output", storage_key=None
        )
        for _ in range(OUTPUTS_MAX)
    ]
    await asyncio.gather(*map(blobs.store.run, orders))
    with pytest.raises(InvalidInput, match=str(OUTPUTS_MAX)):
        await blobs.begin(0, job_id=running.job.id, fence=running.fence, file="output", name="one more")
    await blobs.begin(0, job_id=running.job.id, fence=running.fence, file="log", name="1")


# -- logs ---------------------------------------------------------------------------------------------------


async def test_a_log_is_a_file_at_once_and_is_kept_when_the_attempt_fails(blobs: BlobFixture) -> None:
    running = await blobs.bench.make_claim()
    blobs.jobs[running.job.id] = OWNER
    id = await upload(blobs, running, "1", b"log", "log")
    assert await blobs.files(running.job.id) == [("log", "1", id_of(b"log"))]
    (event,) = await blobs.news("blob.stored")
    assert isinstance(event, BlobEventData)
    assert (event.job_id, event.name) == (running.job.id, "1")
    again = await blobs.finish(id, b"log")
    assert again.upload.state is UploadState.DONE
    assert await blobs.usage() == (3, 0, 0)
    await blobs.bench.jobs.fail(running, "broken", retry=False)
    await blobs.sweep()
    assert await blobs.files(running.job.id) == [("log", "1", id_of(b"log"))]
    assert await blobs.usage() == (3, 0, 0)
    assert await blobs.condemned() == set()


async def test_a_log_replaces_the_one_with_the_same_name(blobs: BlobFixture) -> None:
    running = await blobs.bench.make_claim()
    blobs.jobs[running.job.id] = OWNER
    await upload(blobs, running, "1", b"log", "log")
    await upload(blobs, running, "1", b"longer log", "log")
    assert await blobs.files(running.job.id) == [("log", "1", id_of(b"longer log"))]
    assert await blobs.usage() == (10, 0, 0)
    assert await blobs.condemned() == {id_of(b"log")}


# -- removal ------------------------------------------------------------------------------------------------


async def test_files_are_removed_with_their_job(blobs: BlobFixture) -> None:
    await blobs.bench.jobs.define(Definition(type="noop", retention_seconds=60))
    await blobs.put("k", DATA)
    (enqueued,) = await blobs.enqueue(blobs.order(inputs={"in.txt": BLOB}, payload_blob=BLOB))
    running = await claim(blobs, enqueued.job)
    await upload(blobs, running, "out.txt", b"12345")
    await upload(blobs, running, "1", b"log", "log")
    await blobs.bench.jobs.complete(running)
    await blobs.sweep()
    blobs.bench.clock.advance(seconds=61)
    assert (await blobs.bench.jobs.collect()).removed == 1
    await blobs.check()
    assert await blobs.usage() == (SIZE, 0, 1)
    assert sorted(await blobs.collect(grace=0)) == [3, 5]
    with pytest.raises(JobNotFound):
        await blobs.bench.jobs.files(blobs.tenant, enqueued.job.id)
