"""Enqueue: accepted jobs are stored as they were sent; a call creates all of its jobs or none."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from ingot.identity import TenantNotFound
from ingot.jobs import Definition, DuplicateJob, JobStatus, Source
from ingot.jobs.job_options import new_job
from ingot.kernel.errors import StoreError
from ingot.kernel.ids import is_id, new_id
from tests.conformance.snapshots import refuses, snapshot
from tests.factories import Bench


async def test_a_job_is_stored_as_it_was_sent(bench: Bench) -> None:
    sent = await bench.jobs.enqueue(
        bench.tenant,
        "mail.send",
        {"to": "ada@example.org", "lines": [1, 2.5, None, True, "é\u0000\n"]},
        priority=2,
        run_at=bench.clock.now() + timedelta(hours=1),
        max_attempts=7,
        idempotency_key="order-1",
        dedupe_key="ada",
        tags=["b", "a", "b"],
        metadata={"origin": "form"},
        correlation_id="c-1",
        trace_id="t-1",
        source=Source.EVENT,
        source_ref="event-1",
        created_by="token-1",
    )
    job = await bench.reload(sent.job)
    assert sent.created
    assert is_id(job.id)
    expected = {
        "tenant": bench.tenant,
        "type": "mail.send",
        "status": JobStatus.QUEUED,
        "priority": 2,
        "run_at": bench.clock.now() + timedelta(hours=1),
        "attempts": 0,
        "failures": 0,
        "crashes": 0,
        "max_attempts": 7,
        "fence": 0,
        "source": Source.EVENT,
        "source_ref": "event-1",
        "created_by": "token-1",
        "depth": 0,
        "created_at": bench.clock.now(),
        "idempotency_key": "order-1",
        "dedupe_key": "ada",
        "correlation_id": "c-1",
        "trace_id": "t-1",
        "tags": ("a", "b"),
        "worker_id": None,
        "started_at": None,
        "lease_expires_at": None,
        "cancel_requested": False,
        "progress": None,
        "last_error": None,
        "finished_at": None,
    }
    assert expected == {name: getattr(job, name) for name in expected}
    assert job.read() == {"to": "ada@example.org", "lines": [1, 2.5, None, True, "é\u0000\n"]}
    assert job.read("metadata") == {"origin": "form"}
    assert job.read("result") is None


async def test_enqueue_returns_the_stored_job(bench: Bench) -> None:
    answer = await bench.make_job("noop", {"n": 1}, tags=["z", "a"], metadata=[1], delay=5)
    await bench.make_job()
    stored = await bench.reload(answer)
    parts = ("payload", "metadata", "result")
    names = [name for name in answer.__struct_fields__ if name not in parts]
    assert [getattr(answer, name) for name in names] == [getattr(stored, name) for name in names]
    assert [bytes(getattr(answer, part)) for part in parts] == [bytes(getattr(stored, part)) for part in parts]


async def test_a_job_without_options_gets_the_defaults(bench: Bench) -> None:
    job = await bench.make_job()
    fields = (job.priority, job.max_attempts, job.run_at, job.source, job.tags, job.read(), job.read("metadata"))
    assert (3, 5, bench.clock.now(), Source.MANUAL, (), None, None) == fields


@pytest.mark.parametrize(
    "text",
    [
        b'{"b": 1,   "a": [1.50, 1e3, -0, "\\u00e9"]}',
        b"[ ]",
        b'""',
        b"null",
        b"12345678901234567890123456789",
        b'{"a": 1, "a": 2}',
        '"ünïcödé \U0001f600"'.encode(),
        b'"\\u0000"',
    ],
)
async def test_json_text_is_stored_unchanged(bench: Bench, text: bytes) -> None:
    job = await bench.make_job("noop", text, metadata=text)
    (claim,) = await bench.jobs.claim("worker", ["noop"])
    await bench.jobs.complete(claim, text)
    stored = await bench.reload(job)
    assert [text] * 3 == [bytes(stored.payload), bytes(stored.metadata), bytes(stored.result)]
    assert text == bytes(claim.job.payload)


async def test_whitespace_around_json_text_is_removed(bench: Bench) -> None:
    job = await bench.make_job("noop", b' \r\n{"a": 1}\t')
    assert [bytes(job.payload), bytes((await bench.reload(job)).payload)] == [b'{"a": 1}'] * 2


async def test_the_payload_of_one_job_can_be_passed_to_another(bench: Bench) -> None:
    first = await bench.make_job("noop", {"n": 1})
    second = await bench.make_job("noop", first.payload)
    assert (await bench.reload(second)).read() == {"n": 1}


async def test_a_payload_of_the_largest_size_is_accepted(bench: Bench) -> None:
    text = b'"' + b"x" * (64 * 1024 - 2) + b'"'
    job = await bench.make_job("noop", text, metadata=b'"' + b"y" * (16 * 1024 - 2) + b'"')
    assert text == bytes((await bench.reload(job)).payload)


async def test_json_nested_200_levels_deep_is_accepted(bench: Bench) -> None:
    text = b"[" * 200 + b"]" * 200
    await bench.make_job("noop", text)
    (claim,) = await bench.jobs.claim("worker", ["noop"])
    assert text == bytes(claim.job.payload)


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({"delay": 0}, 0),
        ({"delay": 90}, 90),
        ({"delay": 0.25}, 0.25),
        ({"delay": timedelta(days=3)}, 3 * 86_400),
        ({"run_at": datetime(2020, 1, 1, tzinfo=UTC)}, 0),
        ({"run_at": datetime(1, 1, 1, tzinfo=UTC)}, 0),
    ],
)
async def test_run_at_is_never_before_the_time_of_creation(
    bench: Bench, options: dict[str, Any], seconds: float
) -> None:
    job = await bench.make_job(**options)
    assert bench.clock.now() + timedelta(seconds=seconds) == (await bench.reload(job)).run_at


async def test_a_time_with_another_offset_is_the_same_instant(bench: Bench) -> None:
    berlin = timezone(timedelta(hours=2))
    job = await bench.make_job(run_at=datetime(2030, 6, 1, 12, tzinfo=berlin))
    assert datetime(2030, 6, 1, 10, tzinfo=UTC) == job.run_at


async def test_the_latest_accepted_run_at_can_be_read_back(bench: Bench) -> None:
    moment = datetime(9999, 1, 1, tzinfo=UTC)
    assert moment == (await bench.reload(await bench.make_job(run_at=moment))).run_at


async def test_ids_grow_in_the_order_of_the_calls(bench: Bench) -> None:
    ids = [(await bench.make_job()).id for _ in range(20)]
    assert sorted(ids) == ids


async def test_many_jobs_are_returned_in_the_order_of_the_call(bench: Bench) -> None:
    orders = [new_job(bench.tenant, "noop", n, tags=[f"t{n % 3}"], idempotency_key=f"k{n}") for n in range(300)]
    answers = await bench.jobs.enqueue_many(orders)
    assert [(order.id, True) for order in orders] == [(answer.job.id, answer.created) for answer in answers]
    stored = (await bench.jobs.list(bench.tenant, limit=1000)).items
    assert [(n, (f"t{n % 3}",)) for n in reversed(range(300))] == [(job.read(), job.tags) for job in stored]


async def test_an_empty_call_returns_an_empty_list(bench: Bench) -> None:
    assert await bench.jobs.enqueue_many([]) == []


async def test_a_call_with_one_refused_job_is_refused_as_a_whole(bench: Bench) -> None:
    await bench.make_job(dedupe_key="held")
    orders = [
        new_job(bench.tenant, "noop", idempotency_key="a", dedupe_key="free"),
        new_job(bench.tenant, "noop", tags=["x"]),
        new_job(bench.tenant, "noop", dedupe_key="held"),
    ]
    async with refuses(bench, DuplicateJob):
        await bench.jobs.enqueue_many(orders)
    again = await bench.jobs.enqueue(bench.tenant, "noop", idempotency_key="a", dedupe_key="free")
    assert again.created


async def test_concurrent_calls_are_accepted_or_refused_independently(bench: Bench) -> None:
    await bench.make_job(dedupe_key="held")
    bad = [new_job(bench.tenant, "bad"), new_job(bench.tenant, "bad", dedupe_key="held")]
    good = [new_job(bench.tenant, "good"), new_job(bench.tenant, "good")]
    answers = await asyncio.gather(
        bench.jobs.enqueue_many(good),
        bench.jobs.enqueue_many(bad),
        bench.jobs.enqueue_many([new_job("nobody", "bad")]),
        return_exceptions=True,
    )
    assert [list, DuplicateJob, TenantNotFound] == [type(answer) for answer in answers]
    kinds = [job.type for job in (await bench.jobs.list(bench.tenant)).items]
    assert kinds == ["good", "good", "noop"]


async def test_a_job_of_an_unknown_tenant_is_refused(bench: Bench) -> None:
    async with refuses(bench, TenantNotFound):
        await bench.make_job(tenant=new_id())


async def test_a_call_that_names_an_unknown_tenant_is_refused_as_a_whole(bench: Bench) -> None:
    async with refuses(bench, TenantNotFound):
        await bench.jobs.enqueue_many([new_job(bench.tenant, "noop"), new_job(new_id(), "noop")])


async def test_a_job_gets_priority_and_attempts_from_its_definition(bench: Bench) -> None:
    await bench.jobs.define(Definition(type="noop", priority=1, max_attempts=9))
    job = await bench.make_job()
    assert (job.priority, job.max_attempts) == (1, 9)


async def test_options_of_a_job_take_precedence_over_its_definition(bench: Bench) -> None:
    await bench.jobs.define(Definition(type="noop", priority=1, max_attempts=9))
    job = await bench.make_job(priority=5, max_attempts=2)
    assert (job.priority, job.max_attempts) == (5, 2)


async def test_an_accepted_job_updates_the_counts_and_publishes_an_event(bench: Bench) -> None:
    before = await snapshot(bench)
    job = await bench.make_job(delay=60)
    after = (await snapshot(bench))[0]
    assert before[0]["counts"]["queued"] + 1 == after["counts"]["queued"]
    (event,) = after["events"]
    assert ("job.created", job.id, "noop", "queued") == (
        event["name"],
        *(event["data"][name] for name in ("id", "type", "status")),
    )


async def test_a_resent_order_returns_the_job_it_created(bench: Bench) -> None:
    order = new_job(bench.tenant, "noop", 1, tags=["a"], dedupe_key="d", idempotency_key="k")
    (first,) = await bench.jobs.enqueue_many([order])
    before = await snapshot(bench)
    (again,) = await bench.jobs.enqueue_many([order])
    assert (first.created, again.created, again.job.id) == (True, False, order.id)
    assert await snapshot(bench) == before


async def test_a_resent_order_does_not_stop_new_orders_of_the_call(bench: Bench) -> None:
    old, new = new_job(bench.tenant, "old", 1), new_job(bench.tenant, "new", 2)
    await bench.jobs.enqueue_many([old])
    (claim,) = await bench.jobs.claim("worker", ["old"])
    await bench.jobs.complete(claim)
    together, apart = await asyncio.gather(bench.jobs.enqueue_many([old, new]), bench.make_job("apart"))
    assert [(answer.created, answer.job.status) for answer in together] == [
        (False, JobStatus.SUCCEEDED),
        (True, JobStatus.QUEUED),
    ]
    assert {job.id for job in (await bench.jobs.list(bench.tenant)).items} == {old.id, new.id, apart.id}


async def test_an_order_with_the_id_of_another_tenants_job_is_refused_without_details(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    order = new_job(bench.tenant, "noop", "canary")
    await bench.jobs.enqueue_many([order])
    async with refuses(bench, StoreError) as caught:
        await bench.jobs.enqueue_many([msgspec.structs.replace(order, tenant=other.id)])
    assert "canary" not in caught.value.detail


async def test_an_order_repeated_in_one_call_creates_one_job(bench: Bench) -> None:
    order = new_job(bench.tenant, "noop")
    answers = await bench.jobs.enqueue_many([order, order])
    assert [(answer.created, answer.job.id) for answer in answers] == [(True, order.id), (False, order.id)]


async def test_an_order_sent_eight_times_concurrently_creates_one_job(bench: Bench) -> None:
    order = new_job(bench.tenant, "noop")
    answers = await asyncio.gather(*(bench.jobs.enqueue_many([order]) for _ in range(8)))
    assert sorted(answer.created for (answer,) in answers) == [False] * 7 + [True]
    assert await bench.event_names() == ["job.created"]


async def test_jobs_enqueued_by_many_tasks_are_all_stored(bench: Bench) -> None:
    jobs = await asyncio.gather(*(bench.make_job("noop", n) for n in range(200)))
    stored = (await bench.jobs.list(bench.tenant, limit=1000)).items
    assert {job.id: n for n, job in enumerate(jobs)} == {job.id: job.read() for job in stored}
    assert (await bench.jobs.summary(bench.tenant)).counts[JobStatus.QUEUED] == 200
