"""Idempotency keys and dedupe keys: repeated requests create one job."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from ingot.jobs import DuplicateJob, IdempotencyMismatch, JobStatus
from ingot.jobs.job_options import new_job
from tests.conformance.snapshots import refuses, snapshot
from tests.factories import Bench


async def test_the_same_key_and_payload_return_the_existing_job(bench: Bench) -> None:
    first = await bench.jobs.enqueue(bench.tenant, "noop", {"a": 1, "b": 2}, idempotency_key="k")
    before = await snapshot(bench)
    again = await bench.jobs.enqueue(bench.tenant, "noop", b'{"b":2, "a":1}', idempotency_key="k", priority=1)
    assert (again.job.id, again.created, again.job.priority) == (first.job.id, False, 3)
    assert await snapshot(bench) == before


@pytest.mark.parametrize("status", list(JobStatus)[1:])
async def test_a_key_returns_its_job_in_any_status(bench: Bench, status: JobStatus) -> None:
    job = await bench.make_job_in(status, payload=[1], idempotency_key="k")
    again = await bench.jobs.enqueue(bench.tenant, "noop", [1], idempotency_key="k")
    assert (again.job.id, again.created, again.job.status) == (job.id, False, status)


async def test_a_key_with_another_payload_is_a_mismatch(bench: Bench) -> None:
    await bench.make_job("noop", {"a": 1}, idempotency_key="k")
    async with refuses(bench, IdempotencyMismatch):
        await bench.jobs.enqueue(bench.tenant, "noop", {"a": 2}, idempotency_key="k")


async def test_a_key_with_another_payload_is_a_mismatch_after_the_job_has_finished(bench: Bench) -> None:
    claim = await bench.make_claim(payload=1, idempotency_key="k")
    await bench.jobs.complete(claim)
    async with refuses(bench, IdempotencyMismatch):
        await bench.jobs.enqueue(bench.tenant, "noop", 2, idempotency_key="k")


async def test_an_idempotency_key_is_scoped_to_its_tenant_and_type(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    ids = {
        (await bench.jobs.enqueue(tenant, type, type, idempotency_key="k")).job.id
        for tenant in (bench.tenant, other.id)
        for type in ("a", "b")
    }
    assert len(ids) == 4


async def test_eight_concurrent_calls_with_one_key_create_one_job(bench: Bench) -> None:
    answers = await asyncio.gather(
        *(bench.jobs.enqueue(bench.tenant, "noop", {"n": 1}, idempotency_key="k") for _ in range(8))
    )
    assert len({answer.job.id for answer in answers}) == 1
    assert Counter(answer.created for answer in answers) == {True: 1, False: 7}
    assert (await bench.jobs.summary(bench.tenant)).counts[JobStatus.QUEUED] == 1
    assert await bench.event_names() == ["job.created"]


async def test_eight_concurrent_calls_for_each_of_100_keys_create_100_jobs(bench: Bench) -> None:
    keys = [f"key-{n % 100}" for n in range(800)]
    answers = await asyncio.gather(
        *(bench.jobs.enqueue(bench.tenant, "noop", key, idempotency_key=key) for key in keys)
    )
    ids = {(key, answer.job.id) for key, answer in zip(keys, answers, strict=True)}
    assert (len(ids), Counter(answer.created for answer in answers)) == (100, {True: 100, False: 700})
    assert (await bench.jobs.summary(bench.tenant)).counts[JobStatus.QUEUED] == 100


async def test_one_of_two_concurrent_payloads_under_one_key_is_a_mismatch(bench: Bench) -> None:
    answers = await asyncio.gather(
        *(bench.jobs.enqueue(bench.tenant, "noop", n, idempotency_key="k") for n in range(2)), return_exceptions=True
    )
    assert sorted(type(answer).__name__ for answer in answers) == ["Enqueued", "IdempotencyMismatch"]


async def test_a_key_repeated_in_one_call_creates_one_job(bench: Bench) -> None:
    answers = await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", 1, idempotency_key="k") for _ in range(3)])
    assert [answer.created for answer in answers] == [True, False, False]
    assert len({answer.job.id for answer in answers}) == 1


async def test_a_key_with_two_payloads_in_one_call_is_a_mismatch(bench: Bench) -> None:
    async with refuses(bench, IdempotencyMismatch):
        await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", n, idempotency_key="k") for n in range(2)])


async def test_a_refused_call_does_not_use_its_keys(bench: Bench) -> None:
    await bench.make_job(dedupe_key="held")
    batch = [
        new_job(bench.tenant, "noop", 1, idempotency_key="k"),
        new_job(bench.tenant, "noop", idempotency_key="l", dedupe_key="held"),
    ]
    refused, accepted = await asyncio.gather(
        bench.jobs.enqueue_many(batch),
        bench.jobs.enqueue(bench.tenant, "noop", 2, idempotency_key="k"),
        return_exceptions=True,
    )
    assert isinstance(refused, DuplicateJob)
    assert not isinstance(accepted, BaseException)
    assert accepted.created
    assert (await bench.jobs.enqueue(bench.tenant, "noop", idempotency_key="l")).created


async def test_keys_of_the_maximum_length_and_any_script_are_stored(bench: Bench) -> None:
    job = await bench.make_job(idempotency_key="ключ-'\"\\%_\n" + "x" * 501, dedupe_key="\U0001f600" * 512)
    stored = await bench.reload(job)
    assert (stored.idempotency_key, stored.dedupe_key) == (job.idempotency_key, "\U0001f600" * 512)


@pytest.mark.parametrize("status", [JobStatus.QUEUED, JobStatus.RUNNING])
async def test_an_unfinished_job_holds_its_dedupe_key(bench: Bench, status: JobStatus) -> None:
    holder = await bench.make_job_in(status, "a", dedupe_key="d")
    async with refuses(bench, DuplicateJob) as caught:
        await bench.jobs.enqueue(bench.tenant, "b", dedupe_key="d")
    assert isinstance(caught.value, DuplicateJob)
    assert caught.value.holder_id == holder.id


@pytest.mark.parametrize("status", [JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED])
async def test_a_finished_job_releases_its_dedupe_key(bench: Bench, status: JobStatus) -> None:
    await bench.make_job_in(status, dedupe_key="d")
    assert (await bench.jobs.enqueue(bench.tenant, "noop", dedupe_key="d")).created


async def test_a_job_that_waits_for_a_retry_holds_its_dedupe_key(bench: Bench) -> None:
    await bench.jobs.fail(await bench.make_claim(dedupe_key="d"), "no")
    async with refuses(bench, DuplicateJob):
        await bench.jobs.enqueue(bench.tenant, "noop", dedupe_key="d")


async def test_a_dedupe_key_is_scoped_to_its_tenant(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    await bench.make_job(dedupe_key="d")
    assert (await bench.jobs.enqueue(other.id, "noop", dedupe_key="d")).created


async def test_only_one_of_eight_concurrent_jobs_with_one_dedupe_key_is_accepted(bench: Bench) -> None:
    answers = await asyncio.gather(
        *(bench.jobs.enqueue(bench.tenant, "noop", dedupe_key="d") for _ in range(8)), return_exceptions=True
    )
    assert Counter(type(answer).__name__ for answer in answers) == {"Enqueued": 1, "DuplicateJob": 7}
    holders = {answer.holder_id for answer in answers if isinstance(answer, DuplicateJob)}
    (job,) = (await bench.jobs.list(bench.tenant)).items
    assert holders == {job.id}


async def test_a_dedupe_key_repeated_in_one_call_is_a_duplicate(bench: Bench) -> None:
    async with refuses(bench, DuplicateJob):
        await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", dedupe_key="d") for _ in range(2)])


async def test_an_idempotency_key_takes_precedence_over_the_dedupe_key(bench: Bench) -> None:
    first = await bench.make_job("noop", 1, idempotency_key="k", dedupe_key="d")
    again = await bench.jobs.enqueue(bench.tenant, "noop", 1, idempotency_key="k", dedupe_key="d")
    assert (again.job.id, again.created) == (first.id, False)
