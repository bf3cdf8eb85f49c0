"""Reuse: work that was asked for before is not done again, unless somebody says so."""

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


async def ask(bench: Bench, payload: object = PAYLOAD, type: str = "noop", **options: Any) -> Enqueued:
    return await bench.jobs.enqueue(options.pop("tenant", bench.tenant), type, payload, **options)


def order(bench: Bench, payload: object = PAYLOAD, **options: Any) -> NewJob:
    return new_job(bench.tenant, "noop", payload, **options)


def told(enqueued: Enqueued) -> tuple[str, bool, bool]:
    return enqueued.job.id, enqueued.created, enqueued.reused


# -- what is reused -----------------------------------------------------------------------------------------


async def test_an_order_that_is_sent_again_is_answered_by_its_own_job_and_reuses_none(bench: Bench) -> None:
    await define(bench)
    same = order(bench)
    answers = [await bench.jobs.enqueue_many([same]) for _ in range(2)]
    assert [told(one) for (one,) in answers] == [(same.id, True, False), (same.id, False, False)]


async def test_who_asks_for_the_same_gets_the_job_that_is_there(bench: Bench) -> None:
    await define(bench)
    first = await ask(bench)
    assert (first.created, first.reused) == (True, False)
    before = await snapshot(bench)
    again = await ask(bench, b' {"b":[2,{"c":3}], "a":1} ', priority=1, tags=["other"], delay=60)
    assert told(again) == (first.job.id, False, True)
    assert again.job == first.job
    assert await snapshot(bench) == before


@pytest.mark.parametrize("status", [QUEUED, RUNNING, SUCCEEDED])
async def test_a_job_that_may_still_help_is_reused(bench: Bench, status: JobStatus) -> None:
    await define(bench)
    job = await bench.make_job_in(status, payload=PAYLOAD)
    again = await ask(bench)
    assert told(again) == (job.id, False, True)
    assert again.job == job


async def test_the_result_of_a_job_that_has_succeeded_is_the_answer(bench: Bench) -> None:
    await define(bench)
    await bench.jobs.complete(await bench.make_claim(payload=PAYLOAD), {"sum": 6})
    assert (await ask(bench)).job.read("result") == {"sum": 6}
    assert await bench.jobs.claim("worker", ["noop"]) == []


async def test_a_blocked_job_is_reused(bench: Bench) -> None:
    await define(bench)
    parent = await bench.make_job("first")
    child = (await ask(bench, after=[parent.id])).job
    again = await ask(bench)
    assert told(again) == (child.id, False, True)
    assert again.job.status is JobStatus.BLOCKED
    await end(bench, parent)
    assert told(await ask(bench, after=[parent.id])) == (child.id, False, True)


async def test_a_job_that_will_be_tried_again_is_reused(bench: Bench) -> None:
    await define(bench)
    claim = await bench.make_claim(payload=PAYLOAD)
    await bench.jobs.fail(claim, "not yet")
    assert told(await ask(bench)) == (claim.job.id, False, True)


@pytest.mark.parametrize("status", BAD_ENDS)
async def test_a_job_that_is_dead_or_canceled_is_not_reused(bench: Bench, status: JobStatus) -> None:
    await define(bench)
    lost = await bench.make_job_in(status, payload=PAYLOAD)
    fresh = await ask(bench)
    assert (fresh.created, fresh.reused, fresh.job.id != lost.id) == (True, False, True)
    assert told(await ask(bench)) == (fresh.job.id, False, True)


async def test_a_job_that_is_retried_is_reused_again_unless_another_took_its_place(bench: Bench) -> None:
    await define(bench)
    job = await bench.make_job_in(JobStatus.DEAD, payload=PAYLOAD)
    await bench.jobs.retry(bench.tenant, job.id)
    assert told(await ask(bench)) == (job.id, False, True)
    await bench.jobs.cancel(bench.tenant, job.id)
    fresh = await ask(bench)
    await bench.jobs.retry(bench.tenant, job.id)
    assert told(await ask(bench)) == (fresh.job.id, False, True)


# -- what is not the same -----------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [None, {}, {"a": 1}, {"a": 1, "b": [{"c": 3}, 2]}, {"a": "1", "b": [2, {"c": 3}]}])
async def test_another_payload_is_other_work(bench: Bench, payload: object) -> None:
    await define(bench)
    await ask(bench)
    assert (await ask(bench, payload)).created


async def test_another_version_of_the_definition_is_other_work(bench: Bench) -> None:
    await define(bench, version=1)
    old = await ask(bench)
    await define(bench, version=2)
    new = await ask(bench)
    assert new.created
    assert told(await ask(bench)) == (new.job.id, False, True)
    await define(bench, version=1)
    assert told(await ask(bench)) == (old.job.id, False, True)


async def test_another_tenant_and_another_type_never_share(bench: Bench) -> None:
    await define(bench, "a")
    await define(bench, "b")
    other = (await bench.tenants.create("other")).id
    where = [(tenant, type) for tenant in (bench.tenant, other) for type in "ab"]
    made = [await ask(bench, tenant=tenant, type=type) for tenant, type in where]
    assert all(enqueued.created for enqueued in made)
    again = [await ask(bench, tenant=tenant, type=type) for tenant, type in where]
    assert [told(enqueued) for enqueued in again] == [(enqueued.job.id, False, True) for enqueued in made]


async def test_nothing_is_reused_where_the_definition_does_not_say_so(bench: Bench) -> None:
    await BlobFixture(bench).put("x", b"x")
    made = [await ask(bench, inputs=INPUTS) for _ in range(2)]
    await define(bench)
    made += [await ask(bench, inputs=INPUTS)]
    await define(bench, reuse=False, version=5)
    made += [await ask(bench, inputs=INPUTS)]
    assert [(enqueued.created, enqueued.reused) for enqueued in made] == [(True, False)] * 4
    await define(bench)
    assert told(await ask(bench, inputs=INPUTS)) == (made[2].job.id, False, True)


async def test_a_tenant_s_own_definition_decides_for_it(bench: Bench) -> None:
    await define(bench)
    await define(bench, tenant=bench.tenant, reuse=False)
    other = (await bench.tenants.create("other")).id
    assert [(await ask(bench)).created for _ in range(2)] == [True, True]
    assert [(await ask(bench, tenant=other)).created for _ in range(2)] == [True, False]


# -- force --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [QUEUED, RUNNING, SUCCEEDED, *BAD_ENDS])
async def test_force_makes_a_job_which_is_the_one_reused_from_then_on(bench: Bench, status: JobStatus) -> None:
    await define(bench)
    old = await bench.make_job_in(status, payload=PAYLOAD)
    forced = await ask(bench, force=True)
    assert (forced.created, forced.reused, forced.job.id != old.id) == (True, False, True)
    assert told(await ask(bench)) == (forced.job.id, False, True)


async def test_force_where_nothing_is_there_or_nothing_is_reused_changes_nothing(bench: Bench) -> None:
    assert (await ask(bench, force=True)).created
    await define(bench)
    forced = await ask(bench, force=True)
    assert forced.created
    assert told(await ask(bench)) == (forced.job.id, False, True)


async def test_a_forced_job_that_is_dead_does_not_bring_the_one_before_back(bench: Bench) -> None:
    await define(bench)
    await ask(bench)
    forced = await ask(bench, force=True)
    await bench.jobs.cancel(bench.tenant, forced.job.id)
    assert (await ask(bench)).created


# -- many ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [None, *BAD_ENDS])
async def test_of_many_at_once_one_is_made(bench: Bench, before: JobStatus | None) -> None:
    await define(bench)
    if before is not None:
        await bench.make_job_in(before, payload=PAYLOAD)
    answers = await asyncio.gather(*(ask(bench) for _ in range(32)))
    assert len({answer.job.id for answer in answers}) == 1
    assert Counter((answer.created, answer.reused) for answer in answers) == {(True, False): 1, (False, True): 31}
    assert (await counted(bench))[QUEUED] == 1


async def test_several_in_one_call_make_one_of_each(bench: Bench) -> None:
    await define(bench)
    there = await ask(bench, 0)
    answers = await bench.jobs.enqueue_many([order(bench, n) for n in (0, 1, 2, 1, 0, 2, 1)])
    assert [answer.created for answer in answers] == [False, True, True, False, False, False, False]
    assert [answer.reused for answer in answers] == [True, False, False, True, True, True, True]
    assert [answer.job.read() for answer in answers] == [0, 1, 2, 1, 0, 2, 1]
    assert answers[0].job.id == there.job.id
    assert len({answer.job.id for answer in answers}) == 3


@pytest.mark.parametrize("there", [False, True])
async def test_within_one_call_force_counts_in_the_order_given(bench: Bench, there: bool) -> None:
    await define(bench)
    if there:
        await ask(bench)
    forces = [True, False, True, True, False]
    answers = await bench.jobs.enqueue_many([order(bench, force=force) for force in forces])
    assert [answer.created for answer in answers] == forces
    assert [answer.reused for answer in answers] == [not force for force in forces]
    ids = [answer.job.id for answer in answers]
    assert (ids[1], ids[4], len(set(ids))) == (ids[0], ids[3], 3)
    assert told(await ask(bench)) == (ids[3], False, True)


async def test_a_call_that_is_refused_leaves_nothing_to_reuse(bench: Bench) -> None:
    await define(bench)
    await bench.make_job("held", dedupe_key="d")
    old = await ask(bench, "old")
    async with refuses(bench, DuplicateJob):
        await bench.jobs.enqueue_many([order(bench), order(bench, "old", force=True), order(bench, 1, dedupe_key="d")])
    assert (await ask(bench)).created
    assert told(await ask(bench, "old")) == (old.job.id, False, True)


async def test_a_refused_call_and_a_good_one_at_once(bench: Bench) -> None:
    await define(bench)
    await bench.make_job("held", dedupe_key="d")
    refused, accepted = await asyncio.gather(
        bench.jobs.enqueue_many([order(bench), order(bench, 1, dedupe_key="d")]), ask(bench), return_exceptions=True
    )
    assert isinstance(refused, DuplicateJob)
    assert isinstance(accepted, Enqueued)
    assert (accepted.created, await bench.reload(accepted.job)) == (True, accepted.job)


async def test_an_order_sent_again_is_answered_by_its_own_job(bench: Bench) -> None:
    await define(bench)
    forced = order(bench, force=True)
    (first,) = await bench.jobs.enqueue_many([forced])
    await bench.tenants.change(bench.tenant, limits=Limits(max_unfinished_jobs=100))
    (again,) = await bench.jobs.enqueue_many([forced])
    assert (again.job.id, again.created) == (first.job.id, False)
    assert await counted(bench) == {QUEUED: 1}


# -- with other keys ----------------------------------------------------------------------------------------


async def test_the_idempotency_key_wins(bench: Bench) -> None:
    await define(bench)
    keyed = await ask(bench, idempotency_key="k")
    other = await ask(bench, force=True)
    assert told(await ask(bench, idempotency_key="k")) == (keyed.job.id, False, False)
    assert told(await ask(bench, idempotency_key="k", force=True)) == (keyed.job.id, False, False)
    assert told(await ask(bench)) == (other.job.id, False, True)
    async with refuses(bench, IdempotencyMismatch):
        await ask(bench, "other", idempotency_key="k")


async def test_the_idempotency_key_answers_a_dead_job_where_reuse_would_not(bench: Bench) -> None:
    await define(bench)
    dead = await bench.make_job_in(JobStatus.DEAD, payload=PAYLOAD, idempotency_key="k")
    assert told(await ask(bench, idempotency_key="k")) == (dead.id, False, False)
    assert (await ask(bench)).created


async def test_a_key_that_made_nothing_because_of_reuse_stays_free(bench: Bench) -> None:
    await define(bench)
    first = await ask(bench)
    assert told(await ask(bench, idempotency_key="k")) == (first.job.id, False, True)
    other = await ask(bench, "other", idempotency_key="k")
    assert (other.created, other.job.idempotency_key) == (True, "k")


async def test_a_key_that_made_nothing_in_a_call_makes_nothing_later_in_it(bench: Bench) -> None:
    await define(bench)
    first = await ask(bench)
    answers = await bench.jobs.enqueue_many(
        [order(bench, idempotency_key="k"), order(bench, "other"), order(bench, idempotency_key="k")]
    )
    assert [(answer.created, answer.reused) for answer in answers] == [(False, True), (True, False), (False, True)]
    assert [answer.job.id for answer in answers] == [first.job.id, answers[1].job.id, first.job.id]
    assert answers[1].job.read() == "other"


async def test_reuse_answers_before_a_dedupe_key_refuses(bench: Bench) -> None:
    await define(bench)
    first = await ask(bench, dedupe_key="d")
    assert told(await ask(bench, dedupe_key="d")) == (first.job.id, False, True)
    async with refuses(bench, DuplicateJob):
        await ask(bench, dedupe_key="d", force=True)
    async with refuses(bench, DuplicateJob):
        await ask(bench, "other", dedupe_key="d")


async def test_a_reused_answer_takes_no_dedupe_key(bench: Bench) -> None:
    await define(bench)
    await ask(bench)
    assert (await ask(bench, dedupe_key="d")).reused
    assert (await ask(bench, "other", dedupe_key="d")).created


# -- caps ---------------------------------------------------------------------------------------------------


async def test_a_reused_answer_counts_against_no_cap_and_no_rate(bench: Bench) -> None:
    await define(bench)
    await bench.tenants.change(bench.tenant, limits=Limits(max_unfinished_jobs=2, rate=0.001, burst=2))
    first = await ask(bench)
    for _ in range(4):
        assert (await ask(bench)).reused
    answers = await bench.jobs.enqueue_many([order(bench), order(bench, "other"), order(bench), order(bench, "other")])
    assert [answer.created for answer in answers] == [False, True, False, False]
    assert told(await ask(bench)) == (first.job.id, False, True)
    async with refuses(bench, JobLimitExceeded):
        await ask(bench, force=True)


# -- over time ----------------------------------------------------------------------------------------------


async def test_a_job_that_was_removed_is_not_reused(bench: Bench) -> None:
    await define(bench, retention_seconds=60.0)
    done = await bench.make_job_in(SUCCEEDED, payload=PAYLOAD)
    bench.clock.advance(seconds=61)
    assert (await bench.jobs.collect()).removed == 1
    fresh = await ask(bench)
    assert fresh.created
    with pytest.raises(JobNotFound):
        await bench.reload(done)
    assert told(await ask(bench)) == (fresh.job.id, False, True)


async def test_removing_an_earlier_job_leaves_the_one_that_is_reused(bench: Bench) -> None:
    await define(bench, retention_seconds=60.0)
    await bench.make_job_in(SUCCEEDED, payload=PAYLOAD)
    forced = await ask(bench, force=True)
    bench.clock.advance(seconds=61)
    assert (await bench.jobs.collect()).removed == 1
    assert told(await ask(bench)) == (forced.job.id, False, True)


async def test_what_was_asked_for_is_known_after_a_restart(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    jobs: list[Job] = []
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        await define(bench)
        await BlobFixture(bench).put("x", b"x")
        jobs += [await bench.make_job_in(SUCCEEDED, payload="done"), (await ask(bench, inputs=INPUTS)).job]
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        again = [await ask(bench, "done"), await ask(bench, inputs=INPUTS)]
        assert [told(enqueued) for enqueued in again] == [(job.id, False, True) for job in jobs]
        assert [enqueued.job for enqueued in again] == jobs


# -- bad input ----------------------------------------------------------------------------------------------


async def test_what_is_no_order_is_refused(bench: Bench) -> None:
    await define(bench)
    bad: list[dict[str, Any]] = [
        {"inputs": ["x"]},
        {"payload_blob": "x"},
        {"force": 1},
        {"force": "yes"},
        {"force": None},
    ]
    await refuses_each(bench, InvalidInput, {str(options): partial(ask, bench, **options) for options in bad})


@pytest.mark.parametrize("changes", [{"inputs": ["x"]}, {"inputs": {"a": 1}}, {"payload_blob": 5}, {"force": 1}])
async def test_an_order_made_by_hand_is_looked_at_too(bench: Bench, changes: dict[str, Any]) -> None:
    good = order(bench)
    values = {name: getattr(good, name) for name in ("id", "tenant", "type", "payload")}
    async with refuses(bench, InvalidInput):
        await bench.jobs.enqueue_many([NewJob(**{**values, **changes})])


async def test_what_is_no_definition_is_refused(bench: Bench) -> None:
    bad: list[dict[str, Any]] = [{"version": 0}, {"version": -1}, {"version": 1.5}, {"version": "2"}, {"reuse": 1}]
    await refuses_each(bench, InvalidInput, {str(options): partial(define, bench, **options) for options in bad})
