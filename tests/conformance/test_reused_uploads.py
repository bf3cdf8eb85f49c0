"""Reuse where inputs are sent with the order: an upload that announces its blob is that blob as an input."""

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
async def reuse(blobs: BlobFixture) -> None:
    await blobs.bench.jobs.define(Definition(type="noop", reuse=True))


async def ask(blobs: BlobFixture, **options: Any) -> Enqueued:
    (answer,) = await blobs.enqueue(blobs.order(**options))
    return answer


def told(enqueued: Enqueued) -> tuple[str, bool, bool]:
    return enqueued.job.id, enqueued.created, enqueued.reused


async def uploads_of(blobs: BlobFixture) -> int:
    return (await blobs.store.run(GetBlobMetrics())).uploads


async def send(blobs: BlobFixture, order: NewJob) -> None:
    """Have all come that an order has announced."""
    for upload in order.uploads:
        await blobs.finish(upload.id, FILES[upload.name or ""])


async def test_a_job_that_waits_for_the_same_uploads_is_the_answer_and_nothing_is_begun(blobs: BlobFixture) -> None:
    first = await ask(blobs, announced=FILES)
    assert (first.created, first.reused, first.job.status) == (True, False, BLOCKED)
    before = await blobs.usage(), await uploads_of(blobs), await blobs.bench.event_names()
    await blobs.limit(7)
    again = await ask(blobs, announced=dict(reversed(FILES.items())))
    assert told(again) == (first.job.id, False, True)
    assert again.job == first.job
    assert (await blobs.usage(), await uploads_of(blobs), await blobs.bench.event_names()) == before


async def test_it_is_the_same_whether_inputs_are_sent_or_named(blobs: BlobFixture) -> None:
    order = blobs.order(announced=FILES)
    (first,) = await blobs.enqueue(order)
    await send(blobs, order)
    ways: list[dict[str, Any]] = [
        {"announced": FILES},
        {"inputs": INPUTS},
        {"announced": {"b.txt": b"12"}, "inputs": {"a.pdf": id_of(b"12345")}},
    ]
    for way in ways:
        assert told(await ask(blobs, **way)) == (first.job.id, False, True)
    await blobs.bench.jobs.complete(await claim(blobs, first.job), {"pages": 3})
    for way in ways:
        answer = await ask(blobs, **way)
        assert told(answer) == (first.job.id, False, True)
        assert answer.job.read("result") == {"pages": 3}
    forced = await ask(blobs, inputs=INPUTS, force=True)
    assert told(await ask(blobs, announced=FILES)) == (forced.job.id, False, True)


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
async def test_other_bytes_names_or_options_are_other_work(blobs: BlobFixture, other: dict[str, Any]) -> None:
    await blobs.bench.jobs.define(Definition(type="other", reuse=True))
    await ask(blobs, announced=FILES)
    made = await ask(blobs, **other)
    assert (made.created, made.reused) == (True, False)


async def test_an_upload_that_does_not_say_what_it_brings_is_never_the_same(blobs: BlobFixture) -> None:
    plain = await ask(blobs)
    for kind in ({"uploads": ["a.pdf"]}, {"uploads": ["a.pdf"], "announced": {"b.txt": b"12"}}):
        assert [(await ask(blobs, **kind)).created for _ in range(2)] == [True, True]
    assert told(await ask(blobs)) == (plain.job.id, False, True)


@pytest.mark.parametrize("how", ["fails", "is given up", "is swept", "is canceled"])
async def test_a_job_whose_upload_ends_badly_is_not_reused(blobs: BlobFixture, how: str) -> None:
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
    await send(blobs, second)
    assert await status(blobs, fresh.job) is QUEUED
    assert told(await ask(blobs, announced=FILES)) == (fresh.job.id, False, True)


async def test_force_begins_the_uploads_again(blobs: BlobFixture) -> None:
    first = await ask(blobs, announced=FILES)
    forced = await ask(blobs, announced=FILES, force=True)
    assert (forced.created, forced.job.id != first.job.id) == (True, True)
    assert await uploads_of(blobs) == 4
    assert told(await ask(blobs, announced=FILES)) == (forced.job.id, False, True)
    await blobs.limit(14)
    async with refuses(blobs.bench, QuotaExceeded):
        await ask(blobs, announced=FILES, force=True)


@pytest.mark.parametrize("together", [False, True])
async def test_of_many_at_once_one_is_made(blobs: BlobFixture, together: bool) -> None:
    orders = [blobs.order(announced=FILES) for _ in range(16)]
    if together:
        answers = await blobs.enqueue(*orders)
    else:
        answers = [one for (one,) in await asyncio.gather(*(blobs.bench.jobs.enqueue_many([one]) for one in orders))]
    assert [answer.created for answer in answers].count(True) == 1
    assert len({answer.job.id for answer in answers}) == 1
    assert await uploads_of(blobs) == 2
    assert (await blobs.store.run(GetUsage(tenant=blobs.tenant))).reserved_bytes == 7


async def test_two_tenants_have_a_job_each_and_one_copy(blobs: BlobFixture) -> None:
    other = BlobFixture(blobs.bench, (await blobs.bench.tenants.create("other")).id)
    made = []
    for one in (blobs, other):
        order = one.order(announced=FILES)
        made += await one.enqueue(order)
        await send(one, order)
    assert [answer.created for answer in made] == [True, True]
    assert made[0].job.id != made[1].job.id
    for one, answer in zip((blobs, other), made, strict=True):
        assert told(await ask(one, announced=FILES)) == (answer.job.id, False, True)
    assert (await blobs.store.run(GetBlobMetrics())).blobs == 2
