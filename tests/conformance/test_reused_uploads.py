"""Reuse where inputs are sent with the order: an upload that announces its blob is that blob as an input."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ingot.blobs.errors import QuotaExceeded
from ingot.blobs.ports import GetBlobMetrics, GetUsage
from ingot.jobs import Definition, Enqueued, NewJob
from tests.conformance.depot import Depot, depot, id_of
from tests.conformance.job_files import BLOCKED, QUEUED, claim, status
from tests.conformance.snapshots import refuses

__all__ = ["depot"]

FILES = {"a.pdf": b"12345", "b.txt": b"12"}
INPUTS = {name: id_of(data) for name, data in FILES.items()}


@pytest.fixture(autouse=True)
async def reuse(depot: Depot) -> None:
    await depot.bench.jobs.define(Definition(type="noop", reuse=True))


async def ask(depot: Depot, **options: Any) -> Enqueued:
    (answer,) = await depot.enqueue(depot.order(**options))
    return answer


def told(enqueued: Enqueued) -> tuple[str, bool, bool]:
    return enqueued.job.id, enqueued.created, enqueued.reused


async def uploads_of(depot: Depot) -> int:
    return (await depot.store.run(GetBlobMetrics())).uploads


async def send(depot: Depot, order: NewJob) -> None:
    """Have all come that an order has announced."""
    for upload in order.uploads:
        await depot.finish(upload.id, FILES[upload.name or ""])


async def test_a_job_that_waits_for_the_same_uploads_is_the_answer_and_nothing_is_begun(depot: Depot) -> None:
    first = await ask(depot, announced=FILES)
    assert (first.created, first.reused, first.job.status) == (True, False, BLOCKED)
    before = await depot.usage(), await uploads_of(depot), await depot.bench.event_names()
    await depot.limit(7)
    again = await ask(depot, announced=dict(reversed(FILES.items())))
    assert told(again) == (first.job.id, False, True)
    assert again.job == first.job
    assert (await depot.usage(), await uploads_of(depot), await depot.bench.event_names()) == before


async def test_it_is_the_same_whether_inputs_are_sent_or_named(depot: Depot) -> None:
    order = depot.order(announced=FILES)
    (first,) = await depot.enqueue(order)
    await send(depot, order)
    ways: list[dict[str, Any]] = [
        {"announced": FILES},
        {"inputs": INPUTS},
        {"announced": {"b.txt": b"12"}, "inputs": {"a.pdf": id_of(b"12345")}},
    ]
    for way in ways:
        assert told(await ask(depot, **way)) == (first.job.id, False, True)
    await depot.bench.jobs.complete(await claim(depot, first.job), {"pages": 3})
    for way in ways:
        answer = await ask(depot, **way)
        assert told(answer) == (first.job.id, False, True)
        assert answer.job.read("result") == {"pages": 3}
    forced = await ask(depot, inputs=INPUTS, force=True)
    assert told(await ask(depot, announced=FILES)) == (forced.job.id, False, True)


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
async def test_other_bytes_names_or_options_are_other_work(depot: Depot, other: dict[str, Any]) -> None:
    await depot.bench.jobs.define(Definition(type="other", reuse=True))
    await ask(depot, announced=FILES)
    made = await ask(depot, **other)
    assert (made.created, made.reused) == (True, False)


async def test_an_upload_that_does_not_say_what_it_brings_is_never_the_same(depot: Depot) -> None:
    plain = await ask(depot)
    for kind in ({"uploads": ["a.pdf"]}, {"uploads": ["a.pdf"], "announced": {"b.txt": b"12"}}):
        assert [(await ask(depot, **kind)).created for _ in range(2)] == [True, True]
    assert told(await ask(depot)) == (plain.job.id, False, True)


@pytest.mark.parametrize("how", ["fails", "is given up", "is swept", "is canceled"])
async def test_a_job_whose_upload_ends_badly_is_not_reused(depot: Depot, how: str) -> None:
    order = depot.order(announced=FILES)
    (first,) = await depot.enqueue(order)
    if how == "is canceled":
        await depot.bench.jobs.cancel(depot.tenant, order.id)
    elif how == "is swept":
        depot.bench.clock.advance(seconds=3601)
        await depot.sweep()
    else:
        await depot.end(order.uploads[0].id, "wrong_digest" if how == "fails" else None)
    second = depot.order(announced=FILES)
    (fresh,) = await depot.enqueue(second)
    assert (fresh.created, fresh.job.id != first.job.id) == (True, True)
    await send(depot, second)
    assert await status(depot, fresh.job) is QUEUED
    assert told(await ask(depot, announced=FILES)) == (fresh.job.id, False, True)


async def test_force_begins_the_uploads_again(depot: Depot) -> None:
    first = await ask(depot, announced=FILES)
    forced = await ask(depot, announced=FILES, force=True)
    assert (forced.created, forced.job.id != first.job.id) == (True, True)
    assert await uploads_of(depot) == 4
    assert told(await ask(depot, announced=FILES)) == (forced.job.id, False, True)
    await depot.limit(14)
    async with refuses(depot.bench, QuotaExceeded):
        await ask(depot, announced=FILES, force=True)


@pytest.mark.parametrize("together", [False, True])
async def test_of_many_at_once_one_is_made(depot: Depot, together: bool) -> None:
    orders = [depot.order(announced=FILES) for _ in range(16)]
    if together:
        answers = await depot.enqueue(*orders)
    else:
        answers = [one for (one,) in await asyncio.gather(*(depot.bench.jobs.enqueue_many([one]) for one in orders))]
    assert [answer.created for answer in answers].count(True) == 1
    assert len({answer.job.id for answer in answers}) == 1
    assert await uploads_of(depot) == 2
    assert (await depot.store.run(GetUsage(tenant=depot.tenant))).reserved_bytes == 7


async def test_two_tenants_have_a_job_each_and_one_copy(depot: Depot) -> None:
    other = Depot(depot.bench, (await depot.bench.tenants.create("other")).id)
    made = []
    for one in (depot, other):
        order = one.order(announced=FILES)
        made += await one.enqueue(order)
        await send(one, order)
    assert [answer.created for answer in made] == [True, True]
    assert made[0].job.id != made[1].job.id
    for one, answer in zip((depot, other), made, strict=True):
        assert told(await ask(one, announced=FILES)) == (answer.job.id, False, True)
    assert (await depot.store.run(GetBlobMetrics())).blobs == 2
