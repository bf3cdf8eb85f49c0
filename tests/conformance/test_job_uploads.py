"""Inputs of jobs that come after their order: who waits for them, and what becomes of those that never come."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ingot.blobs.errors import QuotaExceeded, UploadEnded, UploadNotFound
from ingot.blobs.model import BlobEventData, UploadState
from ingot.blobs.ports import FindBlob, FinishUpload, GetBlobMetrics, GetUpload
from ingot.jobs import FileNotFound
from ingot.kernel.clock import ManualClock
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from tests.conformance.depot import HOUR, OWNER, Depot, content_of, depot, id_of
from tests.conformance.job_files import BLOB, BLOCKED, CANCELED, DATA, QUEUED, claim, status
from tests.conformance.snapshots import refuses
from tests.factories import Bench, open_bench

__all__ = ["depot"]


async def test_a_job_is_ready_with_the_upload_of_its_input(depot: Depot) -> None:
    order = depot.order(uploads=["in.txt"])
    (made,) = await depot.enqueue(order)
    assert (made.job.status, made.job.inputs, made.created) == (BLOCKED, {}, True)
    assert await depot.usage() == (0, 5, 0)
    assert await depot.bench.jobs.claim("worker", ["noop"]) == []
    assert await depot.files(made.job.id) == []
    (begun,) = order.uploads
    found = await depot.store.run(GetUpload(tenant=depot.tenant, id=begun.id))
    assert found is not None
    assert (found.upload.state, found.upload.job_id, found.upload.file, found.upload.name) == (
        UploadState.OPEN,
        made.job.id,
        "input",
        "in.txt",
    )
    done = await depot.finish(begun.id, content_of(b"12345", begun.storage_key))
    assert done.upload.state is UploadState.DONE
    assert await depot.usage() == (5, 0, 0)
    assert await depot.files(made.job.id) == [("input", "in.txt", id_of(b"12345"))]
    assert await depot.bench.event_names() == ["job.created", "blob.stored", "job.updated"]
    (news,) = await depot.news("blob.stored")
    assert isinstance(news, BlobEventData)
    assert (news.blob_id, news.job_id, news.name) == (id_of(b"12345"), made.job.id, "in.txt")
    job = await depot.bench.reload(made.job)
    assert (job.status, job.inputs) == (QUEUED, {"in.txt": id_of(b"12345")})
    assert (await claim(depot, made.job)).job.inputs == {"in.txt": id_of(b"12345")}
    assert await depot.store.run(FindBlob(tenant=depot.tenant, blob_id=id_of(b"12345"))) is not None


async def test_who_waits_for_work_hears_of_it_with_the_upload(depot: Depot) -> None:
    order = depot.order(uploads=["in.txt"])
    await depot.enqueue(order)
    waiting = asyncio.create_task(depot.bench.jobs.claim("worker", ["noop"], wait_seconds=20))
    await asyncio.sleep(0)
    await depot.finish(order.uploads[0].id, b"12345")
    assert [found.job.id for found in await waiting] == [order.id]


async def test_a_finished_input_counts_once_and_answers_again(depot: Depot) -> None:
    order = depot.order(uploads=["in.txt"])
    await depot.enqueue(order)
    (begun,) = order.uploads
    first = await depot.finish(begun.id, content_of(b"12345", begun.storage_key))
    again = await depot.finish(begun.id, content_of(b"12345", begun.storage_key))
    assert again == first
    with pytest.raises(UploadEnded):
        await depot.finish(begun.id, b"other")
    assert await depot.usage() == (5, 0, 0)
    assert await depot.references(id_of(b"12345")) == 1
    assert await depot.trash() == []
    depot.bench.clock.advance(days=2)
    assert await depot.sweep() == 1
    assert await depot.usage() == (5, 0, 0)
    assert await depot.files(order.id) == [("input", "in.txt", id_of(b"12345"))]
    assert await depot.condemned() == set()
    assert (await depot.bench.jobs.get(depot.tenant, order.id)).status is QUEUED


async def test_a_job_waits_for_the_last_of_its_uploads(depot: Depot) -> None:
    await depot.put("k", DATA)
    order = depot.order(inputs={"here.txt": BLOB}, uploads=["a", "b", "c"])
    (made,) = await depot.enqueue(order)
    for n, one in enumerate(order.uploads):
        assert await status(depot, made.job) is BLOCKED
        await depot.finish(one.id, bytes([n]))
    job = await depot.bench.reload(made.job)
    inputs = {"here.txt": BLOB, "a": id_of(b"\0"), "b": id_of(b"\1"), "c": id_of(b"\2")}
    assert (job.status, job.inputs) == (QUEUED, inputs)


async def test_uploads_that_are_finished_at_once_make_it_ready_once(depot: Depot) -> None:
    order = depot.order(uploads=["a", "b", "c", "d"])
    (made,) = await depot.enqueue(order)
    await asyncio.gather(
        *(
            depot.store.run(FinishUpload(tenant=depot.tenant, id=one.id, content=content_of(bytes([n])), lifetime=HOUR))
            for n, one in enumerate(order.uploads)
        )
    )
    await depot.check()
    assert await status(depot, made.job) is QUEUED
    assert (await depot.bench.event_names()).count("job.updated") == 1
    assert (await depot.bench.jobs.summary(depot.tenant)).counts[QUEUED] == 1


@pytest.mark.parametrize("first", ["upload", "parent"])
async def test_a_job_waits_for_uploads_and_for_other_jobs(depot: Depot, first: str) -> None:
    parent = await depot.bench.make_claim("first")
    order = depot.order(uploads=["in"], after=[parent.job.id])
    (made,) = await depot.enqueue(order)
    steps = [depot.finish(order.uploads[0].id, b"12345"), depot.bench.jobs.complete(parent)]
    for step in steps if first == "upload" else reversed(steps):
        assert await status(depot, made.job) is BLOCKED
        await step
        await depot.bench.jobs.maintain()
    assert await status(depot, made.job) is QUEUED


async def test_a_job_with_uploads_still_keeps_its_time(depot: Depot) -> None:
    order = depot.order(uploads=["in"], delay=60)
    (made,) = await depot.enqueue(order)
    await depot.finish(order.uploads[0].id, b"12345")
    assert await status(depot, made.job) is QUEUED
    assert await depot.bench.jobs.claim("worker", ["noop"]) == []
    depot.bench.clock.advance(seconds=61)
    await claim(depot, made.job)


@pytest.mark.parametrize("how", ["fails", "is given up", "is swept"])
async def test_a_job_whose_input_does_not_come_is_canceled(depot: Depot, how: str) -> None:
    order = depot.order(uploads=["never.txt", "here.txt", "open.txt"], tags=["t"])
    (made,) = await depot.enqueue(order)
    (child,) = await depot.enqueue(depot.order(after=[order.id]))
    never, here, still = order.uploads
    await depot.finish(here.id, content_of(b"12345", here.storage_key))
    if how == "fails":
        await depot.end(never.id, "wrong_digest")
    elif how == "is given up":
        await depot.end(never.id)
    else:
        found = await depot.store.run(GetUpload(tenant=depot.tenant, id=still.id))
        assert found is not None
        depot.bench.clock.advance(seconds=1800)
        await depot.note(still.id, found.epoch)
        depot.bench.clock.advance(seconds=1801)
        await depot.sweep()
    job = await depot.bench.reload(made.job)
    assert job.status is CANCELED
    assert "never.txt" in (job.last_error or "")
    assert job.finished_at == depot.bench.clock.now()
    await depot.bench.jobs.maintain()
    assert await status(depot, child.job) is CANCELED
    assert await depot.usage() == (5, 0, 0)
    assert await depot.state(still.id) is None
    assert await depot.trash() == sorted([never.storage_key or "", still.storage_key or ""])
    assert await depot.files(job.id) == [("input", "here.txt", id_of(b"12345"))]
    assert "job.canceled" in await depot.bench.event_names()
    with pytest.raises((UploadNotFound, UploadEnded)):
        await depot.finish(still.id, b"late")
    assert (await depot.bench.jobs.summary(depot.tenant)).counts[CANCELED] == 2


async def test_ending_an_upload_that_is_done_cancels_nothing(depot: Depot) -> None:
    order = depot.order(uploads=["in"])
    (made,) = await depot.enqueue(order)
    await depot.finish(order.uploads[0].id, b"12345")
    await depot.end(order.uploads[0].id)
    assert await status(depot, made.job) is QUEUED
    assert await depot.files(order.id) == [("input", "in", id_of(b"12345"))]


@pytest.mark.parametrize("how", ["asked", "parent canceled"])
async def test_the_uploads_of_a_canceled_job_end(depot: Depot, how: str) -> None:
    parent = await depot.bench.make_job("first")
    order = depot.order(uploads=["a", "b"], after=[parent.id])
    (made,) = await depot.enqueue(order)
    await depot.finish(order.uploads[0].id, content_of(b"12345", order.uploads[0].storage_key))
    await depot.bench.jobs.cancel(depot.tenant, made.job.id if how == "asked" else parent.id)
    await depot.bench.jobs.maintain()
    job = await depot.bench.reload(made.job)
    assert (job.status, job.last_error) == (CANCELED, None)
    assert await depot.usage() == (5, 0, 0)
    assert await depot.trash() == [order.uploads[1].storage_key]
    with pytest.raises(UploadNotFound):
        await depot.finish(order.uploads[1].id, b"late")
    await depot.check()


async def test_a_job_whose_input_never_came_is_not_retried(depot: Depot) -> None:
    order = depot.order(uploads=["in", "here"])
    await depot.enqueue(order)
    await depot.finish(order.uploads[1].id, b"12345")
    await depot.bench.jobs.cancel(depot.tenant, order.id)
    async with refuses(depot.bench, FileNotFound):
        await depot.bench.jobs.retry(depot.tenant, order.id)


async def test_a_canceled_job_whose_inputs_are_here_is_retried(depot: Depot) -> None:
    order = depot.order(uploads=["in"])
    (made,) = await depot.enqueue(order)
    await depot.finish(order.uploads[0].id, b"12345")
    await depot.bench.jobs.cancel(depot.tenant, order.id)
    job = await depot.bench.jobs.retry(depot.tenant, order.id)
    assert (job.status, job.inputs) == (QUEUED, {"in": id_of(b"12345")})
    await claim(depot, made.job)


@pytest.mark.parametrize("why", ["same id", "same idempotency key"])
async def test_an_order_that_was_made_before_begins_no_uploads(depot: Depot, why: str) -> None:
    order = depot.order(uploads=["in"], idempotency_key="once")
    (made,) = await depot.enqueue(order)
    again = order if why == "same id" else depot.order(uploads=["in"], idempotency_key="once")
    (known,) = await depot.enqueue(again)
    assert (known.job.id, known.created) == (made.job.id, False)
    assert await depot.usage() == (0, 5, 0)
    await depot.finish(order.uploads[0].id, b"12345")
    assert await status(depot, made.job) is QUEUED


async def test_uploads_are_begun_all_or_none(depot: Depot) -> None:
    await depot.limit(10)
    async with refuses(depot.bench, QuotaExceeded):
        await depot.enqueue(depot.order(uploads=["a", "b"]), depot.order(uploads=["c"]))
    order = depot.order()
    small = msgspec.structs.replace(order, uploads=(depot.upload_of(order, "in", owner_quota=4),))
    async with refuses(depot.bench, QuotaExceeded):
        await depot.enqueue(small)
    assert await depot.usage() == (0, 0, 0)
    assert (await depot.store.run(GetBlobMetrics())).uploads == 0
    await depot.enqueue(depot.order(uploads=["a", "b"]))
    assert await depot.usage() == (0, 10, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"file": "output"},
        {"job_id": new_id()},
        {"fence": 1},
        {"tenant": "other"},
        {"name": None},
        {"name": "a/b"},
        {"key": "k"},
        {"owner": ""},
        {"id": "x"},
        {"blob_id": "x"},
    ],
)
async def test_an_upload_that_is_for_something_else_is_refused(depot: Depot, changes: dict[str, Any]) -> None:
    order = depot.order()
    bad = msgspec.structs.replace(depot.upload_of(order, "in"), **changes)
    async with refuses(depot.bench, InvalidInput):
        await depot.enqueue(msgspec.structs.replace(order, uploads=(bad,)))


async def test_two_inputs_do_not_share_a_name(depot: Depot) -> None:
    await depot.put("k", DATA)
    for order in (depot.order(uploads=["in", "in"]), depot.order(inputs={"in": BLOB}, uploads=["in"])):
        async with refuses(depot.bench, InvalidInput):
            await depot.enqueue(order)


async def test_it_is_told_that_a_job_waits_for_uploads(depot: Depot) -> None:
    parent = await depot.bench.make_job("first")
    order = depot.order(uploads=["a.txt", "b.txt"], after=[parent.id])
    await depot.enqueue(order)
    await depot.finish(order.uploads[1].id, b"12345")
    told = await depot.bench.jobs.explain(depot.tenant, order.id)
    assert [(one.code, one.data) for one in told.reasons] == [
        ("waits_for_uploads", {"inputs": ["a.txt"]}),
        ("waits_for", {"after": [parent.id]}),
    ]
    assert "a.txt" in told.reasons[0].message


async def test_a_job_waits_for_its_upload_over_a_restart(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        depot = Depot(bench)
        order = depot.order(uploads=["in"])
        await depot.enqueue(order)
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        depot = Depot(bench)
        await bench.jobs.maintain()
        assert await bench.jobs.claim("worker", ["noop"]) == []
        depot.jobs[order.id] = OWNER
        await depot.finish(order.uploads[0].id, b"12345")
        assert [found.job.id for found in await bench.jobs.claim("worker", ["noop"])] == [order.id]


async def test_finishing_and_canceling_at_once_end_in_one_of_both(depot: Depot) -> None:
    for n in range(10):
        order = depot.order(uploads=["in"])
        await depot.enqueue(order)
        finish = FinishUpload(
            tenant=depot.tenant, id=order.uploads[0].id, content=content_of(bytes([n])), lifetime=HOUR
        )
        calls = [depot.store.run(finish), depot.bench.jobs.cancel(depot.tenant, order.id)]
        ended = await asyncio.gather(*(calls if n % 2 else reversed(calls)), return_exceptions=True)
        failed = [one for one in ended if isinstance(one, BaseException)]
        assert all(isinstance(one, UploadNotFound) for one in failed)
        assert (await depot.bench.jobs.get(depot.tenant, order.id)).status is CANCELED
        assert len(await depot.files(order.id)) == 1 - len(failed)
        await depot.check()
    assert (await depot.usage())[1] == 0


async def test_a_job_that_waits_for_an_upload_counts_as_unfinished(bench: Bench) -> None:
    depot = Depot(bench)
    await depot.enqueue(depot.order(uploads=["in"]))
    summary = await bench.jobs.summary(bench.tenant)
    assert (summary.counts[BLOCKED], summary.counts[QUEUED]) == (1, 0)
