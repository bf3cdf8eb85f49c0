"""Reuse with uploaded inputs: an upload that announces its blob ID counts as that blob."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ingot.blobs.errors import QuotaExceeded
from ingot.blobs.ports import GetBlobMetrics, GetUsage
from ingot.jobs import Definition, Enqueued, NewJob
from tests.conformance.blob_fixture import BlobFixture, blobs, id_of
from tests.conformance.job_files import BLOCKED, QUEUED, claim, status
from tests.conformance.snapshots import refuses

__all__ = ["blobs"]

FILES = {"a.pdf": b"12345", "b.txt": b"12"}
INPUTS = {name: id_of(data) for name, data in FILES.items()}


@pytest.fixture(autouse=True)
async def enable_reuse(blobs: BlobFixture) -> None:
    await blobs.bench.jobs.define(Definition(type="noop", reuse=True))


async def enqueue(blobs: BlobFixture, **options: Any) -> Enqueued:
    (answer,) = await blobs.enqueue(blobs.order(**options))
    return answer


def outcome_of(enqueued: Enqueued) -> tuple[str, bool, bool]:
    return enqueued.job.id, enqueued.created, enqueued.reused


async def uploads_of(blobs: BlobFixture) -> int:
    return (await blobs.store.run(GetBlobMetrics())).uploads


async def finish_uploads(blobs: BlobFixture, order: NewJob) -> None:
    """Finish all uploads of an order."""
    for upload in order.uploads:
        await blobs.finish(upload.id, FILES[upload.name or ""])


async def test_a_job_waiting_for_the_same_uploads_is_reused_and_no_upload_begins(blobs: BlobFixture) -> None:
    first = await enqueue(blobs, announced=FILES)
    assert (first.created, first.reused, first.job.status) == (True, False, BLOCKED)
    before = await blobs.usage(), await uploads_of(blobs), await blobs.bench.event_names()
    await blobs.limit(7)
    again = await enqueue(blobs, announced=dict(reversed(FILES.items())))
    assert outcome_of(again) == (first.job.id, False, True)
    assert again.job == first.job
    assert (await blobs.usage(), await uploads_of(blobs), await blobs.bench.event_names()) == before


async def test_uploaded_and_named_inputs_are_the_same_work(blobs: BlobFixture) -> None:
    order = blobs.order(announced=FILES)
    (first,) = await blobs.enqueue(order)
    await finish_uploads(blobs, order)
    options_list: list[dict[str, Any]] = [
        {"announced": FILES},
        {"inputs": INPUTS},
        {"announced": {"b.txt": b"12"}, "inputs": {"a.pdf": id_of(b"12345")}},
    ]
    for options in options_list:
        assert outcome_of(await enqueue(blobs, **options)) == (first.job.id, False, True)
    await blobs.bench.jobs.complete(await claim(blobs, first.job), {"pages": 3})
    for options in options_list:
        answer = await enqueue(blobs, **options)
        assert outcome_of(answer) == (first.job.id, False, True)
        assert answer.job.read("result") == {"pages": 3}
    forced = await enqueue(blobs, inputs=INPUTS, force=True)
    assert outcome_of(await enqueue(blobs, announced=FILES)) == (forced.job.id, False, True)


@pytest.mark.parametrize(
    "other",
    [
        {"announced": {**FILES, "b.txt": b"21"}},
        {"announced": {"a.pdf": b"12", "b.txt": b"12345"}},
        {"announced": {"c.pdf": b"12345", "b.txt": b"12"}},
        {"announced": {"a.pdf": b"12345"}},
        {"announced": FILES, "payload": {"pages": "1-3"}},
        {"announced": FILES, "type": "other"},
        {},
    ],
)
async def test_different_bytes_names_or_options_are_different_work(blobs: BlobFixture, other: dict[str, Any]) -> None:
    await blobs.bench.jobs.define(Definition(type="other", reuse=True))
    await enqueue(blobs, announced=FILES)
    enqueued = await enqueue(blobs, **other)
    assert (enqueued.created, enqueued.reused) == (True, False)


async def test_an_upload_without_an_announced_blob_is_never_reused(blobs: BlobFixture) -> None:
    plain = await enqueue(blobs)
    for kind in ({"uploads": ["a.pdf"]}, {"uploads": ["a.pdf"], "announced": {"b.txt": b"12"}}):
        assert [(await enqueue(blobs, **kind)).created for _ in range(2)] == [True, True]
    assert outcome_of(await enqueue(blobs)) == (plain.job.id, False, True)


@pytest.mark.parametrize("how", ["fails", "is ended", "is swept", "is canceled"])
async def test_a_job_whose_upload_failed_is_not_reused(blobs: BlobFixture, how: str) -> None:
    order = blobs.order(announced=FILES)
    (first,) = await blobs.enqueue(order)
    if how == "is canceled":
        await blobs.bench.jobs.cancel(blobs.tenant, order.id)
    elif how == "is swept":
        blobs.bench.clock.advance(seconds=3601)
        await blobs.sweep()
    else:
        await blobs.end(order.uploads[0].id, "wrong_digest" if how == "fails" else None)
    second = blobs.order(announced=FILES)
    (fresh,) = await blobs.enqueue(second)
    assert (fresh.created, fresh.job.id != first.job.id) == (True, True)
    await finish_uploads(blobs, second)
    assert await status(blobs, fresh.job) is QUEUED
    assert outcome_of(await enqueue(blobs, announced=FILES)) == (fresh.job.id, False, True)


async def test_a_forced_request_begins_new_uploads(blobs: BlobFixture) -> None:
    first = await enqueue(blobs, announced=FILES)
    forced = await enqueue(blobs, announced=FILES, force=True)
    assert (forced.created, forced.job.id != first.job.id) == (True, True)
    assert await uploads_of(blobs) == 4
    assert outcome_of(await enqueue(blobs, announced=FILES)) == (forced.job.id, False, True)
    await blobs.limit(14)
    async with refuses(blobs.bench, QuotaExceeded):
        await enqueue(blobs, announced=FILES, force=True)


@pytest.mark.parametrize("together", [False, True])
async def test_concurrent_equal_requests_create_one_job_and_its_uploads(blobs: BlobFixture, together: bool) -> None:
    orders = [blobs.order(announced=FILES) for _ in range(16)]
    if together:
        answers = await blobs.enqueue(*orders)
    else:
        answers = [one for (one,) in await asyncio.gather(*(blobs.bench.jobs.enqueue_many([one]) for one in orders))]
    assert [answer.created for answer in answers].count(True) == 1
    assert len({answer.job.id for answer in answers}) == 1
    assert await uploads_of(blobs) == 2
    assert (await blobs.store.run(GetUsage(tenant=blobs.tenant))).reserved_bytes == 7


async def test_two_tenants_have_their_own_jobs_and_blobs(blobs: BlobFixture) -> None:
    other = BlobFixture(blobs.bench, (await blobs.bench.tenants.create("other")).id)
    answers = []
    for one in (blobs, other):
        order = one.order(announced=FILES)
        answers += await one.enqueue(order)
        await finish_uploads(one, order)
    assert [answer.created for answer in answers] == [True, True]
    assert answers[0].job.id != answers[1].job.id
    for one, answer in zip((blobs, other), answers, strict=True):
        assert outcome_of(await enqueue(one, announced=FILES)) == (answer.job.id, False, True)
    assert (await blobs.store.run(GetBlobMetrics())).blobs == 4
