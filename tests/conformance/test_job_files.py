"""Files of jobs: what an attempt reads and makes, and who may touch that when."""

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
from tests.conformance.blob_fixture import OWNER, BlobFixture, blobs, content_of, id_of
from tests.conformance.job_files import BLOB, DATA, RUNNING, SIZE, SUCCEEDED, claim, status, upload
from tests.conformance.snapshots import refuses, snapshot
from tests.factories import LEASE_SECONDS

__all__ = ["blobs"]


# -- what an attempt reads ----------------------------------------------------------------------------------


async def test_an_input_is_opened_under_its_fence_only(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    (made,) = await blobs.enqueue(blobs.order(inputs={"in.txt": BLOB}))
    jobs = blobs.bench.jobs
    with pytest.raises(LeaseLost):
        await jobs.open_file(made.job.id, 1, "input", "in.txt")
    found = await claim(blobs, made.job, worker="press/1")
    file, content = await jobs.open_file(made.job.id, found.fence, "input", "in.txt", tenant=blobs.tenant)
    assert (file.kind, file.name, file.blob_id, file.size) == ("input", "in.txt", BLOB, SIZE)
    assert content == content_of(DATA)
    assert await jobs.open_file(made.job.id, found.fence, "input", "in.txt", worker="press")
    other = (await blobs.bench.tenants.create("other")).id
    refused: list[tuple[type[IngotError], dict[str, Any]]] = [
        (LeaseLost, {"fence": found.fence + 1}),
        (LeaseLost, {"fence": found.fence - 1}),
        (LeaseLost, {"worker": "other"}),
        (JobNotFound, {"tenant": other}),
        (JobNotFound, {"job_id": new_id()}),
        (JobNotFound, {"job_id": "x"}),
        (FileNotFound, {"name": "other.txt"}),
        (FileNotFound, {"kind": "payload"}),
        (FileNotFound, {"kind": "output"}),
    ]
    good = {"job_id": made.job.id, "fence": found.fence, "kind": "input", "name": "in.txt"}
    for kind, change in refused:
        with pytest.raises(kind):
            await jobs.open_file(**(good | change))  # type: ignore[arg-type]
    await jobs.release(found)
    with pytest.raises(LeaseLost):
        await jobs.open_file(made.job.id, found.fence, "input", "in.txt")


async def test_what_runs_under_a_fence_is_found_under_it_only(blobs: BlobFixture) -> None:
    found = await blobs.bench.make_claim(worker="press/1")
    jobs = blobs.bench.jobs
    running = await jobs.get_running_job(found.job.id, found.fence, worker="press")
    assert (running.job_id, running.tenant, running.type, running.attempt) == (
        found.job.id,
        blobs.tenant,
        "noop",
        1,
    )
    other = (await blobs.bench.tenants.create("other")).id
    for kind, change in (
        (LeaseLost, {"fence": found.fence + 1}),
        (LeaseLost, {"worker": "other"}),
        (JobNotFound, {"tenant": other}),
        (JobNotFound, {"job_id": new_id()}),
        (JobNotFound, {"job_id": "x"}),
    ):
        with pytest.raises(kind):
            await jobs.get_running_job(**({"job_id": found.job.id, "fence": found.fence} | change))  # type: ignore[arg-type]
    await jobs.release(found)
    (again,) = await jobs.claim("worker", ["noop"])
    assert (await jobs.get_running_job(again.job.id, again.fence)).attempt == 2
    with pytest.raises(LeaseLost):
        await jobs.get_running_job(found.job.id, found.fence)


async def test_files_are_listed_in_their_tenant_only(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    (made,) = await blobs.enqueue(blobs.order(inputs={"in.txt": BLOB}))
    other = (await blobs.bench.tenants.create("other")).id
    for tenant, job in ((other, made.job.id), (blobs.tenant, new_id()), (blobs.tenant, "x"), (new_id(), made.job.id)):
        with pytest.raises(JobNotFound):
            await blobs.bench.jobs.files(tenant, job)


# -- outputs ------------------------------------------------------------------------------------------------


async def test_outputs_are_there_with_the_success_of_their_attempt(blobs: BlobFixture) -> None:
    found = await blobs.bench.make_claim()
    blobs.jobs[found.job.id] = OWNER
    uploads = [await upload(blobs, found, name, name.encode()) for name in ("b.txt", "a.txt")]
    late = await blobs.begin(5, job_id=found.job.id, fence=found.fence, file="output", name="late", storage_key="late")
    assert await blobs.files(found.job.id) == []
    assert await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=id_of(b"a.txt"))) is None
    assert await blobs.news("blob.stored") == []
    usage = await blobs.usage()
    settled = await blobs.bench.jobs.complete(found, outputs=["a.txt", "b.txt"])
    assert settled.status is SUCCEEDED
    await blobs.check()
    assert await blobs.usage() == usage
    assert await blobs.files(found.job.id) == [
        ("output", "a.txt", id_of(b"a.txt")),
        ("output", "b.txt", id_of(b"b.txt")),
    ]
    told = {
        (one.blob_id, one.job_id, one.name) for one in await blobs.news("blob.stored") if isinstance(one, BlobEventData)
    }
    assert told == {(id_of(name.encode()), found.job.id, name) for name in ("a.txt", "b.txt")}
    opened = await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=id_of(b"a.txt")))
    assert opened is not None
    assert [(one.kind, one.name, one.job_type) for one in opened[1]] == [("output", "a.txt", "noop")]
    assert await blobs.references(id_of(b"a.txt")) == 1
    assert await blobs.sweep() >= 1
    assert [await blobs.state(one) for one in (*uploads, late.upload.id)] == [None, None, None]
    assert await blobs.trash() == ["late"]
    assert await blobs.usage() == (10, 0, 0)
    assert await blobs.condemned() == set()
    assert len(await blobs.files(found.job.id)) == 2


async def test_outputs_that_nobody_names_are_there_too(blobs: BlobFixture) -> None:
    found = await blobs.bench.make_claim()
    blobs.jobs[found.job.id] = OWNER
    await upload(blobs, found, "a.txt", b"12345")
    await blobs.bench.jobs.complete(found)
    assert await blobs.files(found.job.id) == [("output", "a.txt", id_of(b"12345"))]


async def test_an_output_that_is_not_there_settles_nothing(blobs: BlobFixture) -> None:
    found = await blobs.bench.make_claim()
    blobs.jobs[found.job.id] = OWNER
    await upload(blobs, found, "log", b"12345", "log")
    begun = await blobs.begin(5, job_id=found.job.id, fence=found.fence, file="output", name="a.txt")
    for outputs in (["a.txt"], ["log"], ["nothing", "a.txt"]):
        async with refuses(blobs.bench, OutputMissing):
            await blobs.bench.jobs.complete(found, "x", outputs=outputs)
    assert await status(blobs, found.job) is RUNNING
    await blobs.finish(begun.upload.id, b"1234")
    await blobs.bench.jobs.complete(found, "x", outputs=["a.txt"])
    assert await status(blobs, found.job) is SUCCEEDED
    await blobs.check()


async def test_a_missing_output_of_one_stops_no_other(blobs: BlobFixture) -> None:
    claims = [await blobs.bench.make_claim() for _ in range(3)]
    for found in claims:
        blobs.jobs[found.job.id] = OWNER
    await upload(blobs, claims[0], "a.txt", b"12345")
    settles = [Settle(job_id=one.job.id, fence=one.fence, outcome=Done(outputs=("a.txt",))) for one in claims[:2]]
    settles += [Settle(job_id=claims[2].job.id, fence=claims[2].fence, outcome=Done())]
    answers = await blobs.bench.jobs.settle_many(settles)
    assert [type(answer) for answer in answers] == [Settled, OutputMissing, Settled]
    assert [await status(blobs, one.job) for one in claims] == [SUCCEEDED, RUNNING, SUCCEEDED]
    await blobs.check()


async def test_the_same_success_is_answered_again(blobs: BlobFixture) -> None:
    found = await blobs.bench.make_claim()
    blobs.jobs[found.job.id] = OWNER
    await upload(blobs, found, "a.txt", b"12345")
    first = await blobs.bench.jobs.complete(found, 1, outputs=["a.txt"])
    before = await snapshot(blobs.bench)
    assert await blobs.bench.jobs.complete(found, 1, outputs=["a.txt"]) == first
    assert await snapshot(blobs.bench) == before
    assert await blobs.files(found.job.id) == [("output", "a.txt", id_of(b"12345"))]


@pytest.mark.parametrize("how", ["failed", "released", "lost"])
async def test_what_an_attempt_made_that_did_not_succeed_is_never_seen(blobs: BlobFixture, how: str) -> None:
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


@pytest.mark.parametrize("makes", [True, False])
async def test_a_second_run_takes_the_place_of_the_outputs_of_the_first(blobs: BlobFixture, makes: bool) -> None:
    first = await blobs.bench.make_claim()
    blobs.jobs[first.job.id] = OWNER
    await upload(blobs, first, "old.txt", b"old")
    await upload(blobs, first, "both.txt", b"first")
    await upload(blobs, first, "1", b"log", "log")
    await blobs.bench.jobs.complete(first)
    await blobs.bench.jobs.retry(blobs.tenant, first.job.id)
    assert len(await blobs.files(first.job.id)) == 3
    second = await claim(blobs, first.job)
    if makes:
        await upload(blobs, second, "both.txt", b"second")
    await blobs.bench.jobs.complete(second)
    await blobs.check()
    outputs = [("output", "both.txt", id_of(b"second"))] if makes else []
    assert await blobs.files(first.job.id) == [("log", "1", id_of(b"log")), *outputs]
    assert await blobs.condemned() == {id_of(b"old"), id_of(b"first")}


async def test_of_two_outputs_with_one_name_the_last_is_the_file(blobs: BlobFixture) -> None:
    found = await blobs.bench.make_claim()
    blobs.jobs[found.job.id] = OWNER
    for data in (b"first", b"second", b"third"):
        await upload(blobs, found, "out.txt", data)
        blobs.bench.clock.advance(seconds=1)
    await blobs.bench.jobs.complete(found, outputs=["out.txt"])
    await blobs.check()
    assert await blobs.files(found.job.id) == [("output", "out.txt", id_of(b"third"))]
    await blobs.sweep()
    assert await blobs.usage() == (5, 0, 0)
    assert await blobs.condemned() == {id_of(b"first"), id_of(b"second")}


async def test_an_attempt_makes_so_many_outputs_and_no_more(blobs: BlobFixture) -> None:
    found = await blobs.bench.make_claim()
    orders = [
        blobs.upload_of(blobs.order(), "x", 0, job_id=found.job.id, fence=found.fence, file="output", storage_key=None)
        for _ in range(OUTPUTS_MAX)
    ]
    await asyncio.gather(*map(blobs.store.run, orders))
    with pytest.raises(InvalidInput, match=str(OUTPUTS_MAX)):
        await blobs.begin(0, job_id=found.job.id, fence=found.fence, file="output", name="one more")
    await blobs.begin(0, job_id=found.job.id, fence=found.fence, file="log", name="1")


# -- logs ---------------------------------------------------------------------------------------------------


async def test_a_log_is_a_file_at_once_and_stays_whatever_comes_of_the_attempt(blobs: BlobFixture) -> None:
    found = await blobs.bench.make_claim()
    blobs.jobs[found.job.id] = OWNER
    id = await upload(blobs, found, "1", b"log", "log")
    assert await blobs.files(found.job.id) == [("log", "1", id_of(b"log"))]
    (news,) = await blobs.news("blob.stored")
    assert isinstance(news, BlobEventData)
    assert (news.job_id, news.name) == (found.job.id, "1")
    again = await blobs.finish(id, b"log")
    assert again.upload.state is UploadState.DONE
    assert await blobs.usage() == (3, 0, 0)
    await blobs.bench.jobs.fail(found, "broken", retry=False)
    await blobs.sweep()
    assert await blobs.files(found.job.id) == [("log", "1", id_of(b"log"))]
    assert await blobs.usage() == (3, 0, 0)
    assert await blobs.condemned() == set()


async def test_a_log_takes_the_place_of_one_with_its_name(blobs: BlobFixture) -> None:
    found = await blobs.bench.make_claim()
    blobs.jobs[found.job.id] = OWNER
    await upload(blobs, found, "1", b"log", "log")
    await upload(blobs, found, "1", b"longer log", "log")
    assert await blobs.files(found.job.id) == [("log", "1", id_of(b"longer log"))]
    assert await blobs.usage() == (10, 0, 0)
    assert await blobs.condemned() == {id_of(b"log")}


# -- how they go --------------------------------------------------------------------------------------------


async def test_files_go_with_their_job(blobs: BlobFixture) -> None:
    await blobs.bench.jobs.define(Definition(type="noop", retention_seconds=60))
    await blobs.put("k", DATA)
    (made,) = await blobs.enqueue(blobs.order(inputs={"in.txt": BLOB}, payload_blob=BLOB))
    found = await claim(blobs, made.job)
    await upload(blobs, found, "out.txt", b"12345")
    await upload(blobs, found, "1", b"log", "log")
    await blobs.bench.jobs.complete(found)
    await blobs.sweep()
    blobs.bench.clock.advance(seconds=61)
    assert (await blobs.bench.jobs.collect()).removed == 1
    await blobs.check()
    assert await blobs.usage() == (SIZE, 0, 1)
    assert sorted(await blobs.collect(grace=0)) == [3, 5]
    with pytest.raises(JobNotFound):
        await blobs.bench.jobs.files(blobs.tenant, made.job.id)
