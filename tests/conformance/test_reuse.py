"""Reuse: a request is answered with an existing job that does the same work, unless it is forced."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ingot.identity import Limits
from ingot.jobs import (
    Definition,
    DuplicateJob,
    Enqueued,
    IdempotencyMismatch,
    Job,
    JobLimitExceeded,
    JobNotFound,
    JobStatus,
    NewJob,
)
from ingot.jobs.job_options import new_job
from ingot.kernel.clock import ManualClock
from ingot.kernel.errors import InvalidInput
from tests.conformance.blob_fixture import BlobFixture, id_of
from tests.conformance.job_endings import counted, end
from tests.conformance.snapshots import refuses, refuses_each, snapshot
from tests.factories import Bench, open_bench

QUEUED, RUNNING, SUCCEEDED = JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.SUCCEEDED
PAYLOAD = {"a": 1, "b": [2, {"c": 3}]}
INPUTS = {"x.txt": id_of(b"x")}
BAD_ENDS = [JobStatus.DEAD, JobStatus.CANCELED]


async def define(bench: Bench, type: str = "noop", **options: Any) -> None:
    await bench.jobs.define(Definition(type=type, **{"reuse": True, **options}))


async def enqueue(bench: Bench, payload: object = PAYLOAD, type: str = "noop", **options: Any) -> Enqueued:
    return await bench.jobs.enqueue(options.pop("tenant", bench.tenant), type, payload, **options)


def order(bench: Bench, payload: object = PAYLOAD, **options: Any) -> NewJob:
    return new_job(bench.tenant, "noop", payload, **options)


def outcome_of(enqueued: Enqueued) -> tuple[str, bool, bool]:
    return enqueued.job.id, enqueued.created, enqueued.reused


# -- jobs that are reused -----------------------------------------------------------------------------------


async def test_a_resent_order_returns_its_own_job_and_is_not_marked_reused(bench: Bench) -> None:
    await define(bench)
    same = order(bench)
    answers = [await bench.jobs.enqueue_many([same]) for _ in range(2)]
    assert [outcome_of(one) for (one,) in answers] == [(same.id, True, False), (same.id, False, False)]


async def test_an_equal_request_returns_the_existing_job_unchanged(bench: Bench) -> None:
    await define(bench)
    first = await enqueue(bench)
    assert (first.created, first.reused) == (True, False)
    before = await snapshot(bench)
    again = await enqueue(bench, b' {"b":[2,{"c":3}], "a":1} ', priority=1, tags=["other"], delay=60)
    assert outcome_of(again) == (first.job.id, False, True)
    assert again.job == first.job
    assert await snapshot(bench) == before


@pytest.mark.parametrize("status", [QUEUED, RUNNING, SUCCEEDED])
async def test_a_queued_running_or_succeeded_job_is_reused(bench: Bench, status: JobStatus) -> None:
    await define(bench)
    job = await bench.make_job_in(status, payload=PAYLOAD)
    again = await enqueue(bench)
    assert outcome_of(again) == (job.id, False, True)
    assert again.job == job


async def test_a_request_returns_the_result_of_a_succeeded_job(bench: Bench) -> None:
    await define(bench)
    await bench.jobs.complete(await bench.make_claim(payload=PAYLOAD), {"sum": 6})
    assert (await enqueue(bench)).job.read("result") == {"sum": 6}
    assert await bench.jobs.claim("worker", ["noop"]) == []


async def test_a_blocked_job_is_reused(bench: Bench) -> None:
    await define(bench)
    parent = await bench.make_job("first")
    child = (await enqueue(bench, after=[parent.id])).job
    again = await enqueue(bench)
    assert outcome_of(again) == (child.id, False, True)
    assert again.job.status is JobStatus.BLOCKED
    await end(bench, parent)
    assert outcome_of(await enqueue(bench, after=[parent.id])) == (child.id, False, True)


async def test_a_job_that_will_be_retried_is_reused(bench: Bench) -> None:
    await define(bench)
    claim = await bench.make_claim(payload=PAYLOAD)
    await bench.jobs.fail(claim, "not yet")
    assert outcome_of(await enqueue(bench)) == (claim.job.id, False, True)


@pytest.mark.parametrize("status", BAD_ENDS)
async def test_a_dead_or_canceled_job_is_not_reused(bench: Bench, status: JobStatus) -> None:
    await define(bench)
    lost = await bench.make_job_in(status, payload=PAYLOAD)
    fresh = await enqueue(bench)
    assert (fresh.created, fresh.reused, fresh.job.id != lost.id) == (True, False, True)
    assert outcome_of(await enqueue(bench)) == (fresh.job.id, False, True)


async def test_a_retried_job_is_reused_unless_a_newer_one_replaced_it(bench: Bench) -> None:
    await define(bench)
    job = await bench.make_job_in(JobStatus.DEAD, payload=PAYLOAD)
    await bench.jobs.retry(bench.tenant, job.id)
    assert outcome_of(await enqueue(bench)) == (job.id, False, True)
    await bench.jobs.cancel(bench.tenant, job.id)
    fresh = await enqueue(bench)
    await bench.jobs.retry(bench.tenant, job.id)
    assert outcome_of(await enqueue(bench)) == (fresh.job.id, False, True)


# -- different work -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [None, {}, {"a": 1}, {"a": 1, "b": [{"c": 3}, 2]}, {"a": "1", "b": [2, {"c": 3}]}])
async def test_a_different_payload_is_different_work(bench: Bench, payload: object) -> None:
    await define(bench)
    await enqueue(bench)
    assert (await enqueue(bench, payload)).created


async def test_a_different_version_of_the_definition_is_different_work(bench: Bench) -> None:
    await define(bench, version=1)
    old = await enqueue(bench)
    await define(bench, version=2)
    new = await enqueue(bench)
    assert new.created
    assert outcome_of(await enqueue(bench)) == (new.job.id, False, True)
    await define(bench, version=1)
    assert outcome_of(await enqueue(bench)) == (old.job.id, False, True)


async def test_jobs_are_not_reused_across_tenants_or_types(bench: Bench) -> None:
    await define(bench, "a")
    await define(bench, "b")
    other = (await bench.tenants.create("other")).id
    pairs = [(tenant, type) for tenant in (bench.tenant, other) for type in "ab"]
    first = [await enqueue(bench, tenant=tenant, type=type) for tenant, type in pairs]
    assert all(enqueued.created for enqueued in first)
    again = [await enqueue(bench, tenant=tenant, type=type) for tenant, type in pairs]
    assert [outcome_of(enqueued) for enqueued in again] == [(enqueued.job.id, False, True) for enqueued in first]


async def test_jobs_created_without_reuse_are_never_reused(bench: Bench) -> None:
    await BlobFixture(bench).put("x", b"x")
    results = [await enqueue(bench, inputs=INPUTS) for _ in range(2)]
    await define(bench)
    results += [await enqueue(bench, inputs=INPUTS)]
    await define(bench, reuse=False, version=5)
    results += [await enqueue(bench, inputs=INPUTS)]
    assert [(enqueued.created, enqueued.reused) for enqueued in results] == [(True, False)] * 4
    await define(bench)
    assert outcome_of(await enqueue(bench, inputs=INPUTS)) == (results[2].job.id, False, True)


async def test_a_tenants_own_definition_decides_about_reuse(bench: Bench) -> None:
    await define(bench)
    await define(bench, tenant=bench.tenant, reuse=False)
    other = (await bench.tenants.create("other")).id
    assert [(await enqueue(bench)).created for _ in range(2)] == [True, True]
    assert [(await enqueue(bench, tenant=other)).created for _ in range(2)] == [True, False]


# -- force --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [QUEUED, RUNNING, SUCCEEDED, *BAD_ENDS])
async def test_a_forced_job_is_the_one_reused_afterwards(bench: Bench, status: JobStatus) -> None:
    await define(bench)
    old = await bench.make_job_in(status, payload=PAYLOAD)
    forced = await enqueue(bench, force=True)
    assert (forced.created, forced.reused, forced.job.id != old.id) == (True, False, True)
    assert outcome_of(await enqueue(bench)) == (forced.job.id, False, True)


async def test_force_has_no_effect_without_an_existing_job_or_without_reuse(bench: Bench) -> None:
    assert (await enqueue(bench, force=True)).created
    await define(bench)
    forced = await enqueue(bench, force=True)
    assert forced.created
    assert outcome_of(await enqueue(bench)) == (forced.job.id, False, True)


async def test_a_canceled_forced_job_does_not_make_the_earlier_job_reusable(bench: Bench) -> None:
    await define(bench)
    await enqueue(bench)
    forced = await enqueue(bench, force=True)
    await bench.jobs.cancel(bench.tenant, forced.job.id)
    assert (await enqueue(bench)).created


# -- many requests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [None, *BAD_ENDS])
async def test_concurrent_equal_requests_create_one_job(bench: Bench, before: JobStatus | None) -> None:
    await define(bench)
    if before is not None:
        await bench.make_job_in(before, payload=PAYLOAD)
    answers = await asyncio.gather(*(enqueue(bench) for _ in range(32)))
    assert len({answer.job.id for answer in answers}) == 1
    assert Counter((answer.created, answer.reused) for answer in answers) == {(True, False): 1, (False, True): 31}
    assert (await counted(bench))[QUEUED] == 1


async def test_equal_orders_of_one_call_create_one_job_each(bench: Bench) -> None:
    await define(bench)
    existing = await enqueue(bench, 0)
    answers = await bench.jobs.enqueue_many([order(bench, n) for n in (0, 1, 2, 1, 0, 2, 1)])
    assert [answer.created for answer in answers] == [False, True, True, False, False, False, False]
    assert [answer.reused for answer in answers] == [True, False, False, True, True, True, True]
    assert [answer.job.read() for answer in answers] == [0, 1, 2, 1, 0, 2, 1]
    assert answers[0].job.id == existing.job.id
    assert len({answer.job.id for answer in answers}) == 3


@pytest.mark.parametrize("there", [False, True])
async def test_force_applies_in_the_order_of_the_call(bench: Bench, there: bool) -> None:
    await define(bench)
    if there:
        await enqueue(bench)
    forces = [True, False, True, True, False]
    answers = await bench.jobs.enqueue_many([order(bench, force=force) for force in forces])
    assert [answer.created for answer in answers] == forces
    assert [answer.reused for answer in answers] == [not force for force in forces]
    ids = [answer.job.id for answer in answers]
    assert (ids[1], ids[4], len(set(ids))) == (ids[0], ids[3], 3)
    assert outcome_of(await enqueue(bench)) == (ids[3], False, True)


async def test_a_refused_call_leaves_no_job_to_reuse(bench: Bench) -> None:
    await define(bench)
    await bench.make_job("held", dedupe_key="d")
    old = await enqueue(bench, "old")
    async with refuses(bench, DuplicateJob):
        await bench.jobs.enqueue_many([order(bench), order(bench, "old", force=True), order(bench, 1, dedupe_key="d")])
    assert (await enqueue(bench)).created
    assert outcome_of(await enqueue(bench, "old")) == (old.job.id, False, True)


async def test_a_request_concurrent_with_a_refused_call_gets_its_own_job(bench: Bench) -> None:
    await define(bench)
    await bench.make_job("held", dedupe_key="d")
    refused, accepted = await asyncio.gather(
        bench.jobs.enqueue_many([order(bench), order(bench, 1, dedupe_key="d")]), enqueue(bench), return_exceptions=True
    )
    assert isinstance(refused, DuplicateJob)
    assert isinstance(accepted, Enqueued)
    assert (accepted.created, await bench.reload(accepted.job)) == (True, accepted.job)


async def test_a_resent_forced_order_returns_its_own_job(bench: Bench) -> None:
    await define(bench)
    forced = order(bench, force=True)
    (first,) = await bench.jobs.enqueue_many([forced])
    await bench.tenants.change(bench.tenant, limits=Limits(max_unfinished_jobs=100))
    (again,) = await bench.jobs.enqueue_many([forced])
    assert (again.job.id, again.created) == (first.job.id, False)
    assert await counted(bench) == {QUEUED: 1}


# -- with other keys ----------------------------------------------------------------------------------------


async def test_an_idempotency_key_takes_precedence_over_reuse(bench: Bench) -> None:
    await define(bench)
    keyed = await enqueue(bench, idempotency_key="k")
    other = await enqueue(bench, force=True)
    assert outcome_of(await enqueue(bench, idempotency_key="k")) == (keyed.job.id, False, False)
    assert outcome_of(await enqueue(bench, idempotency_key="k", force=True)) == (keyed.job.id, False, False)
    assert outcome_of(await enqueue(bench)) == (other.job.id, False, True)
    async with refuses(bench, IdempotencyMismatch):
        await enqueue(bench, "other", idempotency_key="k")


async def test_an_idempotency_key_returns_a_dead_job_that_reuse_would_not(bench: Bench) -> None:
    await define(bench)
    dead = await bench.make_job_in(JobStatus.DEAD, payload=PAYLOAD, idempotency_key="k")
    assert outcome_of(await enqueue(bench, idempotency_key="k")) == (dead.id, False, False)
    assert (await enqueue(bench)).created


async def test_an_idempotency_key_of_a_reused_answer_stays_unused(bench: Bench) -> None:
    await define(bench)
    first = await enqueue(bench)
    assert outcome_of(await enqueue(bench, idempotency_key="k")) == (first.job.id, False, True)
    other = await enqueue(bench, "other", idempotency_key="k")
    assert (other.created, other.job.idempotency_key) == (True, "k")


async def test_a_key_of_a_reused_answer_creates_no_job_later_in_the_call(bench: Bench) -> None:
    await define(bench)
    first = await enqueue(bench)
    answers = await bench.jobs.enqueue_many(
        [order(bench, idempotency_key="k"), order(bench, "other"), order(bench, idempotency_key="k")]
    )
    assert [(answer.created, answer.reused) for answer in answers] == [(False, True), (True, False), (False, True)]
    assert [answer.job.id for answer in answers] == [first.job.id, answers[1].job.id, first.job.id]
    assert answers[1].job.read() == "other"


async def test_reuse_takes_precedence_over_a_dedupe_key(bench: Bench) -> None:
    await define(bench)
    first = await enqueue(bench, dedupe_key="d")
    assert outcome_of(await enqueue(bench, dedupe_key="d")) == (first.job.id, False, True)
    async with refuses(bench, DuplicateJob):
        await enqueue(bench, dedupe_key="d", force=True)
    async with refuses(bench, DuplicateJob):
        await enqueue(bench, "other", dedupe_key="d")


async def test_a_reused_answer_does_not_take_its_dedupe_key(bench: Bench) -> None:
    await define(bench)
    await enqueue(bench)
    assert (await enqueue(bench, dedupe_key="d")).reused
    assert (await enqueue(bench, "other", dedupe_key="d")).created


# -- caps ---------------------------------------------------------------------------------------------------


async def test_a_reused_answer_does_not_count_toward_cap_or_rate(bench: Bench) -> None:
    await define(bench)
    await bench.tenants.change(bench.tenant, limits=Limits(max_unfinished_jobs=2, rate=0.001, burst=2))
    first = await enqueue(bench)
    for _ in range(4):
        assert (await enqueue(bench)).reused
    answers = await bench.jobs.enqueue_many([order(bench), order(bench, "other"), order(bench), order(bench, "other")])
    assert [answer.created for answer in answers] == [False, True, False, False]
    assert outcome_of(await enqueue(bench)) == (first.job.id, False, True)
    async with refuses(bench, JobLimitExceeded):
        await enqueue(bench, force=True)


# -- removal and restart ------------------------------------------------------------------------------------


async def test_a_removed_job_is_not_reused(bench: Bench) -> None:
    await define(bench, retention_seconds=60.0)
    done = await bench.make_job_in(SUCCEEDED, payload=PAYLOAD)
    bench.clock.advance(seconds=61)
    assert (await bench.jobs.collect()).removed == 1
    fresh = await enqueue(bench)
    assert fresh.created
    with pytest.raises(JobNotFound):
        await bench.reload(done)
    assert outcome_of(await enqueue(bench)) == (fresh.job.id, False, True)


async def test_removing_an_earlier_job_keeps_the_newer_one_reusable(bench: Bench) -> None:
    await define(bench, retention_seconds=60.0)
    await bench.make_job_in(SUCCEEDED, payload=PAYLOAD)
    forced = await enqueue(bench, force=True)
    bench.clock.advance(seconds=61)
    assert (await bench.jobs.collect()).removed == 1
    assert outcome_of(await enqueue(bench)) == (forced.job.id, False, True)


async def test_jobs_are_reused_after_a_restart(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    jobs: list[Job] = []
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        await define(bench)
        await BlobFixture(bench).put("x", b"x")
        jobs += [await bench.make_job_in(SUCCEEDED, payload="done"), (await enqueue(bench, inputs=INPUTS)).job]
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        again = [await enqueue(bench, "done"), await enqueue(bench, inputs=INPUTS)]
        assert [outcome_of(enqueued) for enqueued in again] == [(job.id, False, True) for job in jobs]
        assert [enqueued.job for enqueued in again] == jobs


# -- bad input ----------------------------------------------------------------------------------------------


async def test_invalid_orders_are_refused(bench: Bench) -> None:
    await define(bench)
    bad: list[dict[str, Any]] = [
        {"inputs": ["x"]},
        {"payload_blob": "x"},
        {"force": 1},
        {"force": "yes"},
        {"force": None},
    ]
    await refuses_each(bench, InvalidInput, {str(options): partial(enqueue, bench, **options) for options in bad})


@pytest.mark.parametrize("changes", [{"inputs": ["x"]}, {"inputs": {"a": 1}}, {"payload_blob": 5}, {"force": 1}])
async def test_invalid_orders_built_by_hand_are_refused(bench: Bench, changes: dict[str, Any]) -> None:
    good = order(bench)
    values = {name: getattr(good, name) for name in ("id", "tenant", "type", "payload")}
    async with refuses(bench, InvalidInput):
        await bench.jobs.enqueue_many([NewJob(**{**values, **changes})])


async def test_invalid_reuse_options_of_a_definition_are_refused(bench: Bench) -> None:
    bad: list[dict[str, Any]] = [{"version": 0}, {"version": -1}, {"version": 1.5}, {"version": "2"}, {"reuse": 1}]
    await refuses_each(bench, InvalidInput, {str(options): partial(define, bench, **options) for options in bad})
