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
from tests.conformance.depot import OWNER, Depot, content_of, depot, id_of
from tests.conformance.job_files import BLOB, DATA, RUNNING, SIZE, SUCCEEDED, claim, status, upload
from tests.conformance.snapshots import refuses, snapshot
from tests.factories import LEASE_SECONDS

__all__ = ["depot"]


# -- what an attempt reads ----------------------------------------------------------------------------------


async def test_an_input_is_opened_under_its_fence_only(depot: Depot) -> None:
    await depot.put("k", DATA)
    (made,) = await depot.enqueue(depot.order(inputs={"in.txt": BLOB}))
    jobs = depot.bench.jobs
    with pytest.raises(LeaseLost):
        await jobs.open_file(made.job.id, 1, "input", "in.txt")
    found = await claim(depot, made.job, worker="press/1")
    file, content = await jobs.open_file(made.job.id, found.fence, "input", "in.txt", tenant=depot.tenant)
    assert (file.kind, file.name, file.blob_id, file.size) == ("input", "in.txt", BLOB, SIZE)
    assert content == content_of(DATA)
    assert await jobs.open_file(made.job.id, found.fence, "input", "in.txt", worker="press")
    other = (await depot.bench.tenants.create("other")).id
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


async def test_what_runs_under_a_fence_is_found_under_it_only(depot: Depot) -> None:
    found = await depot.bench.make_claim(worker="press/1")
    jobs = depot.bench.jobs
    running = await jobs.get_running_job(found.job.id, found.fence, worker="press")
    assert (running.job_id, running.tenant, running.type, running.attempt) == (
        found.job.id,
        depot.tenant,
        "noop",
        1,
    )
    other = (await depot.bench.tenants.create("other")).id
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


async def test_files_are_listed_in_their_tenant_only(depot: Depot) -> None:
    await depot.put("k", DATA)
    (made,) = await depot.enqueue(depot.order(inputs={"in.txt": BLOB}))
    other = (await depot.bench.tenants.create("other")).id
    for tenant, job in ((other, made.job.id), (depot.tenant, new_id()), (depot.tenant, "x"), (new_id(), made.job.id)):
        with pytest.raises(JobNotFound):
            await depot.bench.jobs.files(tenant, job)


# -- outputs ------------------------------------------------------------------------------------------------


async def test_outputs_are_there_with_the_success_of_their_attempt(depot: Depot) -> None:
    found = await depot.bench.make_claim()
    depot.jobs[found.job.id] = OWNER
    uploads = [await upload(depot, found, name, name.encode()) for name in ("b.txt", "a.txt")]
    late = await depot.begin(5, job_id=found.job.id, fence=found.fence, file="output", name="late", storage_key="late")
    assert await depot.files(found.job.id) == []
    assert await depot.store.run(FindBlob(tenant=depot.tenant, blob_id=id_of(b"a.txt"))) is None
    assert await depot.news("blob.stored") == []
    usage = await depot.usage()
    settled = await depot.bench.jobs.complete(found, outputs=["a.txt", "b.txt"])
    assert settled.status is SUCCEEDED
    await depot.check()
    assert await depot.usage() == usage
    assert await depot.files(found.job.id) == [
        ("output", "a.txt", id_of(b"a.txt")),
        ("output", "b.txt", id_of(b"b.txt")),
    ]
    told = {
        (one.blob_id, one.job_id, one.name) for one in await depot.news("blob.stored") if isinstance(one, BlobEventData)
    }
    assert told == {(id_of(name.encode()), found.job.id, name) for name in ("a.txt", "b.txt")}
    opened = await depot.store.run(FindBlob(tenant=depot.tenant, blob_id=id_of(b"a.txt")))
    assert opened is not None
    assert [(one.kind, one.name, one.job_type) for one in opened[1]] == [("output", "a.txt", "noop")]
    assert await depot.references(id_of(b"a.txt")) == 1
    assert await depot.sweep() >= 1
    assert [await depot.state(one) for one in (*uploads, late.upload.id)] == [None, None, None]
    assert await depot.trash() == ["late"]
    assert await depot.usage() == (10, 0, 0)
    assert await depot.condemned() == set()
    assert len(await depot.files(found.job.id)) == 2


async def test_outputs_that_nobody_names_are_there_too(depot: Depot) -> None:
    found = await depot.bench.make_claim()
    depot.jobs[found.job.id] = OWNER
    await upload(depot, found, "a.txt", b"12345")
    await depot.bench.jobs.complete(found)
    assert await depot.files(found.job.id) == [("output", "a.txt", id_of(b"12345"))]


async def test_an_output_that_is_not_there_settles_nothing(depot: Depot) -> None:
    found = await depot.bench.make_claim()
    depot.jobs[found.job.id] = OWNER
    await upload(depot, found, "log", b"12345", "log")
    begun = await depot.begin(5, job_id=found.job.id, fence=found.fence, file="output", name="a.txt")
    for outputs in (["a.txt"], ["log"], ["nothing", "a.txt"]):
        async with refuses(depot.bench, OutputMissing):
            await depot.bench.jobs.complete(found, "x", outputs=outputs)
    assert await status(depot, found.job) is RUNNING
    await depot.finish(begun.upload.id, b"1234")
    await depot.bench.jobs.complete(found, "x", outputs=["a.txt"])
    assert await status(depot, found.job) is SUCCEEDED
    await depot.check()


async def test_a_missing_output_of_one_stops_no_other(depot: Depot) -> None:
    claims = [await depot.bench.make_claim() for _ in range(3)]
    for found in claims:
        depot.jobs[found.job.id] = OWNER
    await upload(depot, claims[0], "a.txt", b"12345")
    settles = [Settle(job_id=one.job.id, fence=one.fence, outcome=Done(outputs=("a.txt",))) for one in claims[:2]]
    settles += [Settle(job_id=claims[2].job.id, fence=claims[2].fence, outcome=Done())]
    answers = await depot.bench.jobs.settle_many(settles)
    assert [type(answer) for answer in answers] == [Settled, OutputMissing, Settled]
    assert [await status(depot, one.job) for one in claims] == [SUCCEEDED, RUNNING, SUCCEEDED]
    await depot.check()


async def test_the_same_success_is_answered_again(depot: Depot) -> None:
    found = await depot.bench.make_claim()
    depot.jobs[found.job.id] = OWNER
    await upload(depot, found, "a.txt", b"12345")
    first = await depot.bench.jobs.complete(found, 1, outputs=["a.txt"])
    before = await snapshot(depot.bench)
    assert await depot.bench.jobs.complete(found, 1, outputs=["a.txt"]) == first
    assert await snapshot(depot.bench) == before
    assert await depot.files(found.job.id) == [("output", "a.txt", id_of(b"12345"))]


@pytest.mark.parametrize("how", ["failed", "released", "lost"])
async def test_what_an_attempt_made_that_did_not_succeed_is_never_seen(depot: Depot, how: str) -> None:
    first = await depot.bench.make_claim()
    depot.jobs[first.job.id] = OWNER
    await upload(depot, first, "old.txt", b"old")
    await upload(depot, first, "both.txt", b"first")
    if how == "failed":
        await depot.bench.jobs.fail(first, "broken")
    elif how == "released":
        await depot.bench.jobs.release(first)
    else:
        depot.bench.clock.advance(seconds=LEASE_SECONDS + 1)
        await depot.bench.jobs.maintain()
    depot.bench.clock.advance(seconds=60)
    second = await claim(depot, first.job)
    await upload(depot, second, "both.txt", b"second")
    with pytest.raises(LeaseLost):
        await depot.bench.jobs.complete(first, outputs=["old.txt"])
    with pytest.raises(OutputMissing):
        await depot.bench.jobs.complete(second, outputs=["old.txt"])
    await depot.bench.jobs.complete(second, outputs=["both.txt"])
    assert await depot.files(first.job.id) == [("output", "both.txt", id_of(b"second"))]
    await depot.sweep()
    assert await depot.usage() == (6, 0, 0)
    assert await depot.condemned() == {id_of(b"old"), id_of(b"first")}
    assert [one.name for one in await depot.news("blob.stored") if isinstance(one, BlobEventData)] == ["both.txt"]


@pytest.mark.parametrize("makes", [True, False])
async def test_a_second_run_takes_the_place_of_the_outputs_of_the_first(depot: Depot, makes: bool) -> None:
    first = await depot.bench.make_claim()
    depot.jobs[first.job.id] = OWNER
    await upload(depot, first, "old.txt", b"old")
    await upload(depot, first, "both.txt", b"first")
    await upload(depot, first, "1", b"log", "log")
    await depot.bench.jobs.complete(first)
    await depot.bench.jobs.retry(depot.tenant, first.job.id)
    assert len(await depot.files(first.job.id)) == 3
    second = await claim(depot, first.job)
    if makes:
        await upload(depot, second, "both.txt", b"second")
    await depot.bench.jobs.complete(second)
    await depot.check()
    outputs = [("output", "both.txt", id_of(b"second"))] if makes else []
    assert await depot.files(first.job.id) == [("log", "1", id_of(b"log")), *outputs]
    assert await depot.condemned() == {id_of(b"old"), id_of(b"first")}


async def test_of_two_outputs_with_one_name_the_last_is_the_file(depot: Depot) -> None:
    found = await depot.bench.make_claim()
    depot.jobs[found.job.id] = OWNER
    for data in (b"first", b"second", b"third"):
        await upload(depot, found, "out.txt", data)
        depot.bench.clock.advance(seconds=1)
    await depot.bench.jobs.complete(found, outputs=["out.txt"])
    await depot.check()
    assert await depot.files(found.job.id) == [("output", "out.txt", id_of(b"third"))]
    await depot.sweep()
    assert await depot.usage() == (5, 0, 0)
    assert await depot.condemned() == {id_of(b"first"), id_of(b"second")}


async def test_an_attempt_makes_so_many_outputs_and_no_more(depot: Depot) -> None:
    found = await depot.bench.make_claim()
    orders = [
        depot.upload_of(depot.order(), "x", 0, job_id=found.job.id, fence=found.fence, file="output", storage_key=None)
        for _ in range(OUTPUTS_MAX)
    ]
    await asyncio.gather(*map(depot.store.run, orders))
    with pytest.raises(InvalidInput, match=str(OUTPUTS_MAX)):
        await depot.begin(0, job_id=found.job.id, fence=found.fence, file="output", name="one more")
    await depot.begin(0, job_id=found.job.id, fence=found.fence, file="log", name="1")


# -- logs ---------------------------------------------------------------------------------------------------


async def test_a_log_is_a_file_at_once_and_stays_whatever_comes_of_the_attempt(depot: Depot) -> None:
    found = await depot.bench.make_claim()
    depot.jobs[found.job.id] = OWNER
    id = await upload(depot, found, "1", b"log", "log")
    assert await depot.files(found.job.id) == [("log", "1", id_of(b"log"))]
    (news,) = await depot.news("blob.stored")
    assert isinstance(news, BlobEventData)
    assert (news.job_id, news.name) == (found.job.id, "1")
    again = await depot.finish(id, b"log")
    assert again.upload.state is UploadState.DONE
    assert await depot.usage() == (3, 0, 0)
    await depot.bench.jobs.fail(found, "broken", retry=False)
    await depot.sweep()
    assert await depot.files(found.job.id) == [("log", "1", id_of(b"log"))]
    assert await depot.usage() == (3, 0, 0)
    assert await depot.condemned() == set()


async def test_a_log_takes_the_place_of_one_with_its_name(depot: Depot) -> None:
    found = await depot.bench.make_claim()
    depot.jobs[found.job.id] = OWNER
    await upload(depot, found, "1", b"log", "log")
    await upload(depot, found, "1", b"longer log", "log")
    assert await depot.files(found.job.id) == [("log", "1", id_of(b"longer log"))]
    assert await depot.usage() == (10, 0, 0)
    assert await depot.condemned() == {id_of(b"log")}


# -- how they go --------------------------------------------------------------------------------------------


async def test_files_go_with_their_job(depot: Depot) -> None:
    await depot.bench.jobs.define(Definition(type="noop", retention_seconds=60))
    await depot.put("k", DATA)
    (made,) = await depot.enqueue(depot.order(inputs={"in.txt": BLOB}, payload_blob=BLOB))
    found = await claim(depot, made.job)
    await upload(depot, found, "out.txt", b"12345")
    await upload(depot, found, "1", b"log", "log")
    await depot.bench.jobs.complete(found)
    await depot.sweep()
    depot.bench.clock.advance(seconds=61)
    assert (await depot.bench.jobs.collect()).removed == 1
    await depot.check()
    assert await depot.usage() == (SIZE, 0, 1)
    assert sorted(await depot.collect(grace=0)) == [3, 5]
    with pytest.raises(JobNotFound):
        await depot.bench.jobs.files(depot.tenant, made.job.id)
