"""Inputs uploaded after the order: jobs wait for them, and are canceled if an upload fails."""

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
from tests.conformance.blob_fixture import HOUR, OWNER, BlobFixture, blobs, content_of, id_of
from tests.conformance.job_files import BLOB, BLOCKED, CANCELED, DATA, QUEUED, claim, status
from tests.conformance.snapshots import refuses
from tests.factories import Bench, open_bench

__all__ = ["blobs"]


async def test_a_job_is_queued_when_the_upload_of_its_input_finishes(blobs: BlobFixture) -> None:
    order = blobs.order(uploads=["in.txt"])
    (enqueued,) = await blobs.enqueue(order)
    assert (enqueued.job.status, enqueued.job.inputs, enqueued.created) == (BLOCKED, {}, True)
    assert await blobs.usage() == (0, 5, 0)
    assert await blobs.bench.jobs.claim("worker", ["noop"]) == []
    assert await blobs.files(enqueued.job.id) == []
    (begun,) = order.uploads
    found = await blobs.store.run(GetUpload(tenant=blobs.tenant, id=begun.id))
    assert found is not None
    assert (found.upload.state, found.upload.job_id, found.upload.file, found.upload.name) == (
        UploadState.OPEN,
        enqueued.job.id,
        "input",
        "in.txt",
    )
    done = await blobs.finish(begun.id, content_of(b"12345", begun.storage_key))
    assert done.upload.state is UploadState.DONE
    assert await blobs.usage() == (5, 0, 0)
    assert await blobs.files(enqueued.job.id) == [("input", "in.txt", id_of(b"12345"))]
    assert await blobs.bench.event_names() == ["job.created", "blob.stored", "job.updated"]
    (event,) = await blobs.news("blob.stored")
    assert isinstance(event, BlobEventData)
    assert (event.blob_id, event.job_id, event.name) == (id_of(b"12345"), enqueued.job.id, "in.txt")
    job = await blobs.bench.reload(enqueued.job)
    assert (job.status, job.inputs) == (QUEUED, {"in.txt": id_of(b"12345")})
    assert (await claim(blobs, enqueued.job)).job.inputs == {"in.txt": id_of(b"12345")}
    assert await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=id_of(b"12345"))) is not None


async def test_a_waiting_claim_is_woken_when_an_input_upload_finishes(blobs: BlobFixture) -> None:
    order = blobs.order(uploads=["in.txt"])
    await blobs.enqueue(order)
    waiting = asyncio.create_task(blobs.bench.jobs.claim("worker", ["noop"], wait_seconds=20))
    await asyncio.sleep(0)
    await blobs.finish(order.uploads[0].id, b"12345")
    assert [claimed.job.id for claimed in await waiting] == [order.id]


async def test_a_repeated_finish_of_an_input_counts_once(blobs: BlobFixture) -> None:
    order = blobs.order(uploads=["in.txt"])
    await blobs.enqueue(order)
    (begun,) = order.uploads
    first = await blobs.finish(begun.id, content_of(b"12345", begun.storage_key))
    again = await blobs.finish(begun.id, content_of(b"12345", begun.storage_key))
    assert again == first
    with pytest.raises(UploadEnded):
        await blobs.finish(begun.id, b"other")
    assert await blobs.usage() == (5, 0, 0)
    assert await blobs.references(id_of(b"12345")) == 1
    assert await blobs.trash() == []
    blobs.bench.clock.advance(days=2)
    assert await blobs.sweep() == 1
    assert await blobs.usage() == (5, 0, 0)
    assert await blobs.files(order.id) == [("input", "in.txt", id_of(b"12345"))]
    assert await blobs.condemned() == set()
    assert (await blobs.bench.jobs.get(blobs.tenant, order.id)).status is QUEUED


async def test_a_job_waits_for_the_last_of_its_uploads(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    order = blobs.order(inputs={"here.txt": BLOB}, uploads=["a", "b", "c"])
    (enqueued,) = await blobs.enqueue(order)
    for n, one in enumerate(order.uploads):
        assert await status(blobs, enqueued.job) is BLOCKED
        await blobs.finish(one.id, bytes([n]))
    job = await blobs.bench.reload(enqueued.job)
    inputs = {"here.txt": BLOB, "a": id_of(b"\0"), "b": id_of(b"\1"), "c": id_of(b"\2")}
    assert (job.status, job.inputs) == (QUEUED, inputs)


async def test_concurrently_finished_uploads_queue_their_job_once(blobs: BlobFixture) -> None:
    order = blobs.order(uploads=["a", "b", "c", "d"])
    (enqueued,) = await blobs.enqueue(order)
    await asyncio.gather(
        *(
            blobs.store.run(FinishUpload(tenant=blobs.tenant, id=one.id, content=content_of(bytes([n])), lifetime=HOUR))
            for n, one in enumerate(order.uploads)
        )
    )
    await blobs.check()
    assert await status(blobs, enqueued.job) is QUEUED
    assert (await blobs.bench.event_names()).count("job.updated") == 1
    assert (await blobs.bench.jobs.summary(blobs.tenant)).counts[QUEUED] == 1


@pytest.mark.parametrize("first", ["upload", "parent"])
async def test_a_job_waits_for_its_uploads_and_its_parents(blobs: BlobFixture, first: str) -> None:
    parent = await blobs.bench.make_claim("first")
    order = blobs.order(uploads=["in"], after=[parent.job.id])
    (enqueued,) = await blobs.enqueue(order)
    steps = [blobs.finish(order.uploads[0].id, b"12345"), blobs.bench.jobs.complete(parent)]
    for step in steps if first == "upload" else reversed(steps):
        assert await status(blobs, enqueued.job) is BLOCKED
        await step
        await blobs.bench.jobs.maintain()
    assert await status(blobs, enqueued.job) is QUEUED


async def test_a_job_with_uploads_waits_for_its_run_at_as_well(blobs: BlobFixture) -> None:
    order = blobs.order(uploads=["in"], delay=60)
    (enqueued,) = await blobs.enqueue(order)
    await blobs.finish(order.uploads[0].id, b"12345")
    assert await status(blobs, enqueued.job) is QUEUED
    assert await blobs.bench.jobs.claim("worker", ["noop"]) == []
    blobs.bench.clock.advance(seconds=61)
    await claim(blobs, enqueued.job)


@pytest.mark.parametrize("how", ["fails", "is canceled", "is swept"])
async def test_a_job_is_canceled_when_an_upload_of_its_input_ends_unfinished(blobs: BlobFixture, how: str) -> None:
    order = blobs.order(uploads=["never.txt", "here.txt", "open.txt"], tags=["t"])
    (enqueued,) = await blobs.enqueue(order)
    (child,) = await blobs.enqueue(blobs.order(after=[order.id]))
    failing, finished, open_upload = order.uploads
    await blobs.finish(finished.id, content_of(b"12345", finished.storage_key))
    if how == "fails":
        await blobs.end(failing.id, "wrong_digest")
    elif how == "is canceled":
        await blobs.end(failing.id)
    else:
        found = await blobs.store.run(GetUpload(tenant=blobs.tenant, id=open_upload.id))
        assert found is not None
        blobs.bench.clock.advance(seconds=1800)
        await blobs.note(open_upload.id, found.epoch)
        blobs.bench.clock.advance(seconds=1801)
        await blobs.sweep()
    job = await blobs.bench.reload(enqueued.job)
    assert job.status is CANCELED
    assert "never.txt" in (job.last_error or "")
    assert job.finished_at == blobs.bench.clock.now()
    await blobs.bench.jobs.maintain()
    assert await status(blobs, child.job) is CANCELED
    assert await blobs.usage() == (5, 0, 0)
    assert await blobs.state(open_upload.id) is None
    assert await blobs.trash() == sorted([failing.storage_key or "", open_upload.storage_key or ""])
    assert await blobs.files(job.id) == [("input", "here.txt", id_of(b"12345"))]
    assert "job.canceled" in await blobs.bench.event_names()
    with pytest.raises((UploadNotFound, UploadEnded)):
        await blobs.finish(open_upload.id, b"late")
    assert (await blobs.bench.jobs.summary(blobs.tenant)).counts[CANCELED] == 2


async def test_ending_a_finished_upload_does_not_cancel_the_job(blobs: BlobFixture) -> None:
    order = blobs.order(uploads=["in"])
    (enqueued,) = await blobs.enqueue(order)
    await blobs.finish(order.uploads[0].id, b"12345")
    await blobs.end(order.uploads[0].id)
    assert await status(blobs, enqueued.job) is QUEUED
    assert await blobs.files(order.id) == [("input", "in", id_of(b"12345"))]


@pytest.mark.parametrize("how", ["asked", "parent canceled"])
async def test_open_uploads_of_a_canceled_job_are_ended(blobs: BlobFixture, how: str) -> None:
    parent = await blobs.bench.make_job("first")
    order = blobs.order(uploads=["a", "b"], after=[parent.id])
    (enqueued,) = await blobs.enqueue(order)
    await blobs.finish(order.uploads[0].id, content_of(b"12345", order.uploads[0].storage_key))
    await blobs.bench.jobs.cancel(blobs.tenant, enqueued.job.id if how == "asked" else parent.id)
    await blobs.bench.jobs.maintain()
    job = await blobs.bench.reload(enqueued.job)
    assert (job.status, job.last_error) == (CANCELED, None)
    assert await blobs.usage() == (5, 0, 0)
    assert await blobs.trash() == [order.uploads[1].storage_key]
    with pytest.raises(UploadNotFound):
        await blobs.finish(order.uploads[1].id, b"late")
    await blobs.check()


async def test_a_job_with_a_missing_input_cannot_be_retried(blobs: BlobFixture) -> None:
    order = blobs.order(uploads=["in", "here"])
    await blobs.enqueue(order)
    await blobs.finish(order.uploads[1].id, b"12345")
    await blobs.bench.jobs.cancel(blobs.tenant, order.id)
    async with refuses(blobs.bench, FileNotFound):
        await blobs.bench.jobs.retry(blobs.tenant, order.id)


async def test_a_canceled_job_with_complete_inputs_can_be_retried(blobs: BlobFixture) -> None:
    order = blobs.order(uploads=["in"])
    (enqueued,) = await blobs.enqueue(order)
    await blobs.finish(order.uploads[0].id, b"12345")
    await blobs.bench.jobs.cancel(blobs.tenant, order.id)
    job = await blobs.bench.jobs.retry(blobs.tenant, order.id)
    assert (job.status, job.inputs) == (QUEUED, {"in": id_of(b"12345")})
    await claim(blobs, enqueued.job)


@pytest.mark.parametrize("why", ["same id", "same idempotency key"])
async def test_a_repeated_order_begins_no_uploads(blobs: BlobFixture, why: str) -> None:
    order = blobs.order(uploads=["in"], idempotency_key="once")
    (enqueued,) = await blobs.enqueue(order)
    again = order if why == "same id" else blobs.order(uploads=["in"], idempotency_key="once")
    (repeated,) = await blobs.enqueue(again)
    assert (repeated.job.id, repeated.created) == (enqueued.job.id, False)
    assert await blobs.usage() == (0, 5, 0)
    await blobs.finish(order.uploads[0].id, b"12345")
    assert await status(blobs, enqueued.job) is QUEUED


async def test_a_call_beyond_the_quota_begins_no_uploads(blobs: BlobFixture) -> None:
    await blobs.limit(10)
    async with refuses(blobs.bench, QuotaExceeded):
        await blobs.enqueue(blobs.order(uploads=["a", "b"]), blobs.order(uploads=["c"]))
    order = blobs.order()
    small = msgspec.structs.replace(order, uploads=(blobs.upload_of(order, "in", owner_quota=4),))
    async with refuses(blobs.bench, QuotaExceeded):
        await blobs.enqueue(small)
    assert await blobs.usage() == (0, 0, 0)
    assert (await blobs.store.run(GetBlobMetrics())).uploads == 0
    await blobs.enqueue(blobs.order(uploads=["a", "b"]))
    assert await blobs.usage() == (0, 10, 0)


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
async def test_an_upload_that_does_not_match_its_order_is_refused(blobs: BlobFixture, changes: dict[str, Any]) -> None:
    order = blobs.order()
    bad = msgspec.structs.replace(blobs.upload_of(order, "in"), **changes)
    async with refuses(blobs.bench, InvalidInput):
        await blobs.enqueue(msgspec.structs.replace(order, uploads=(bad,)))


async def test_two_inputs_with_one_name_are_refused(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    for order in (blobs.order(uploads=["in", "in"]), blobs.order(inputs={"in": BLOB}, uploads=["in"])):
        async with refuses(blobs.bench, InvalidInput):
            await blobs.enqueue(order)


async def test_an_explanation_names_the_uploads_that_a_job_waits_for(blobs: BlobFixture) -> None:
    parent = await blobs.bench.make_job("first")
    order = blobs.order(uploads=["a.txt", "b.txt"], after=[parent.id])
    await blobs.enqueue(order)
    await blobs.finish(order.uploads[1].id, b"12345")
    explanation = await blobs.bench.jobs.explain(blobs.tenant, order.id)
    assert [(one.code, one.data) for one in explanation.reasons] == [
        ("waits_for_uploads", {"inputs": ["a.txt"]}),
        ("waits_for", {"after": [parent.id]}),
    ]
    assert "a.txt" in explanation.reasons[0].message


async def test_a_job_waits_for_its_upload_across_a_restart(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        blobs = BlobFixture(bench)
        order = blobs.order(uploads=["in"])
        await blobs.enqueue(order)
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        blobs = BlobFixture(bench)
        await bench.jobs.maintain()
        assert await bench.jobs.claim("worker", ["noop"]) == []
        blobs.jobs[order.id] = OWNER
        await blobs.finish(order.uploads[0].id, b"12345")
        assert [found.job.id for found in await bench.jobs.claim("worker", ["noop"])] == [order.id]


async def test_a_job_is_canceled_when_upload_and_cancel_are_concurrent(blobs: BlobFixture) -> None:
    for n in range(10):
        order = blobs.order(uploads=["in"])
        await blobs.enqueue(order)
        finish = FinishUpload(
            tenant=blobs.tenant, id=order.uploads[0].id, content=content_of(bytes([n])), lifetime=HOUR
        )
        calls = [blobs.store.run(finish), blobs.bench.jobs.cancel(blobs.tenant, order.id)]
        ended = await asyncio.gather(*(calls if n % 2 else reversed(calls)), return_exceptions=True)
        failed = [one for one in ended if isinstance(one, BaseException)]
        assert all(isinstance(one, UploadNotFound) for one in failed)
        assert (await blobs.bench.jobs.get(blobs.tenant, order.id)).status is CANCELED
        assert len(await blobs.files(order.id)) == 1 - len(failed)
        await blobs.check()
    assert (await blobs.usage())[1] == 0


async def test_a_job_that_waits_for_an_upload_counts_as_unfinished(bench: Bench) -> None:
    blobs = BlobFixture(bench)
    await blobs.enqueue(blobs.order(uploads=["in"]))
    summary = await bench.jobs.summary(bench.tenant)
    assert (summary.counts[BLOCKED], summary.counts[QUEUED]) == (1, 0)
