"""Caps: how many unfinished jobs a tenant may have, and how fast it may enqueue more."""

from __future__ import annotations

import asyncio

import pytest

from ingot.identity import Limits
from ingot.jobs import DuplicateJob, JobLimitExceeded, JobStatus, NewJob, RateLimited
from ingot.jobs.job_options import new_job
from ingot.kernel.errors import IngotError
from tests.conformance.snapshots import refuses
from tests.factories import LEASE_SECONDS, Bench

CAP = 4
UNFINISHED = (JobStatus.BLOCKED, JobStatus.QUEUED, JobStatus.RUNNING)


async def limit(bench: Bench, **limits: float | int | None) -> None:
    await bench.tenants.change(bench.tenant, limits=Limits(**limits))  # type: ignore[arg-type]


def orders(bench: Bench, count: int, **options: str) -> list[NewJob]:
    return [new_job(bench.tenant, "noop", n, **options) for n in range(count)]  # type: ignore[arg-type]


async def unfinished(bench: Bench) -> int:
    counts = (await bench.jobs.summary(bench.tenant)).counts
    return sum(counts[status] for status in UNFINISHED)


# -- unfinished jobs ----------------------------------------------------------------------------------------


async def test_a_tenant_has_no_more_unfinished_jobs_than_it_may(bench: Bench) -> None:
    await limit(bench, max_unfinished_jobs=CAP)
    await bench.jobs.enqueue_many(orders(bench, CAP))
    async with refuses(bench, JobLimitExceeded):
        await bench.make_job()


async def test_a_call_over_the_cap_is_refused_whole(bench: Bench) -> None:
    await limit(bench, max_unfinished_jobs=CAP)
    await bench.make_job()
    async with refuses(bench, JobLimitExceeded):
        await bench.jobs.enqueue_many(orders(bench, CAP))
    await bench.jobs.enqueue_many(orders(bench, CAP - 1))


async def test_a_cap_of_nothing_lets_nothing_in(bench: Bench) -> None:
    await limit(bench, max_unfinished_jobs=0)
    async with refuses(bench, JobLimitExceeded):
        await bench.make_job()


async def test_jobs_that_wait_for_their_time_or_run_count_too(bench: Bench) -> None:
    await limit(bench, max_unfinished_jobs=3)
    await bench.make_job("later", delay=1000)
    await bench.make_claim("held")
    failing = await bench.make_claim("failing")
    await bench.jobs.fail(failing, "again")
    async with refuses(bench, JobLimitExceeded):
        await bench.make_job()


@pytest.mark.parametrize("how", ["succeeded", "dead", "canceled", "lost"])
async def test_a_job_that_finishes_makes_room(bench: Bench, how: str) -> None:
    await limit(bench, max_unfinished_jobs=1)
    job = await bench.make_job()
    if how == "canceled":
        await bench.jobs.cancel(bench.tenant, job.id)
    else:
        (claim,) = await bench.jobs.claim("worker", ["noop"])
        if how == "succeeded":
            await bench.jobs.complete(claim)
        elif how == "dead":
            await bench.jobs.fail(claim, "no", retry=False)
        else:
            await bench.jobs.cancel(bench.tenant, job.id)
            bench.clock.advance(seconds=LEASE_SECONDS)
            await bench.jobs.maintain()
    await bench.make_job()
    async with refuses(bench, JobLimitExceeded):
        await bench.make_job()


async def test_calls_at_once_are_counted_one_after_the_other(bench: Bench) -> None:
    most = 60  # It is reached when calls have begun to be written together.
    await limit(bench, max_unfinished_jobs=most)
    sizes = [1, 3, 2, 1, 1, 2, 3, 1] * 10
    answers = await asyncio.gather(
        *(bench.jobs.enqueue_many(orders(bench, size)) for size in sizes), return_exceptions=True
    )
    accepted = sum(size for size, answer in zip(sizes, answers, strict=True) if isinstance(answer, list))
    assert accepted == await unfinished(bench) == most
    assert {type(answer) for answer in answers} == {list, JobLimitExceeded}


async def test_calls_at_once_beside_one_that_breaks_the_batch_are_counted_too(bench: Bench) -> None:
    await limit(bench, max_unfinished_jobs=CAP)
    (again,) = orders(bench, 1)
    await bench.jobs.enqueue_many([again])
    calls = [[again], *(orders(bench, 1) for _ in range(8)), [again]]
    answers = await asyncio.gather(*(bench.jobs.enqueue_many(call) for call in calls), return_exceptions=True)
    assert await unfinished(bench) == CAP
    assert [isinstance(answers[place], list) for place in (0, -1)] == [True, True]


async def test_what_was_there_before_counts_nothing(bench: Bench) -> None:
    await limit(bench, max_unfinished_jobs=CAP, rate=CAP)
    first = orders(bench, CAP)
    first[0] = new_job(bench.tenant, "noop", 0, idempotency_key="k")
    await bench.jobs.enqueue_many(first)
    for again in ([first[1]], [new_job(bench.tenant, "noop", 0, idempotency_key="k")], first):
        assert not any(enqueued.created for enqueued in await bench.jobs.enqueue_many(again))
    async with refuses(bench, JobLimitExceeded):
        await bench.jobs.enqueue_many([first[1], *orders(bench, 1)])


async def test_an_order_refused_and_sent_again_is_refused_again(bench: Bench) -> None:
    await limit(bench, max_unfinished_jobs=1)
    await bench.make_job()
    (order,) = orders(bench, 1)
    calls = (bench.jobs.enqueue_many([order]) for _ in range(3))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(answer) for answer in answers} == {JobLimitExceeded}
    assert await unfinished(bench) == 1


async def test_a_retry_counts(bench: Bench) -> None:
    await limit(bench, max_unfinished_jobs=1)
    done = await bench.make_job_in(JobStatus.SUCCEEDED)
    held = await bench.make_job("held")
    async with refuses(bench, JobLimitExceeded):
        await bench.jobs.retry(bench.tenant, done.id)
    await bench.jobs.cancel(bench.tenant, held.id)
    await bench.jobs.retry(bench.tenant, done.id)
    async with refuses(bench, JobLimitExceeded):
        await bench.make_job()


async def test_retries_at_once_are_counted_one_after_the_other(bench: Bench) -> None:
    done = [await bench.make_job_in(JobStatus.SUCCEEDED) for _ in range(CAP)]
    await limit(bench, max_unfinished_jobs=2)
    calls = (bench.jobs.retry(bench.tenant, job.id) for job in done)
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(answer, JobLimitExceeded) for answer in answers) == CAP - 2
    assert await unfinished(bench) == 2


async def test_a_new_cap_holds_from_the_next_call_on(bench: Bench) -> None:
    await limit(bench, max_unfinished_jobs=CAP)
    await bench.jobs.enqueue_many(orders(bench, CAP))
    await limit(bench, max_unfinished_jobs=CAP + 1)
    await bench.make_job()
    await limit(bench, max_unfinished_jobs=2)
    async with refuses(bench, JobLimitExceeded):
        await bench.make_job()
    await limit(bench)
    await bench.make_job()


async def test_the_cap_of_one_tenant_is_nothing_to_another(bench: Bench) -> None:
    other = (await bench.tenants.create("other")).id
    await limit(bench, max_unfinished_jobs=0)
    await bench.make_job(tenant=other)
    async with refuses(bench, JobLimitExceeded):
        await bench.jobs.enqueue_many([new_job(other, "noop"), new_job(bench.tenant, "noop")])


async def test_work_that_comes_back_is_never_refused(bench: Bench) -> None:
    claim = await bench.make_claim()
    await bench.make_job("other")
    await limit(bench, max_unfinished_jobs=1)
    await bench.jobs.release(claim)
    assert (await bench.reload(claim)).status is JobStatus.QUEUED


# -- rate ---------------------------------------------------------------------------------------------------


async def refusal(bench: Bench, count: int = 1) -> RateLimited:
    async with refuses(bench, RateLimited) as caught:
        await bench.jobs.enqueue_many(orders(bench, count))
    assert isinstance(caught.value, RateLimited)
    return caught.value


async def test_a_tenant_enqueues_its_burst_at_once_and_then_at_its_rate(bench: Bench) -> None:
    await limit(bench, rate=2, burst=5)
    await bench.jobs.enqueue_many(orders(bench, 5))
    for _ in range(3):
        assert (await refusal(bench)).retry_after_seconds == pytest.approx(0.5, abs=0.001)
        bench.clock.advance(seconds=0.49)
        await refusal(bench)
        bench.clock.advance(seconds=0.01)
        await bench.make_job()


async def test_who_waits_as_long_as_told_is_let_in(bench: Bench) -> None:
    await limit(bench, rate=0.3, burst=7)
    await bench.jobs.enqueue_many(orders(bench, 7))
    for count in (1, 3, 7, 2):
        bench.clock.advance(seconds=(await refusal(bench, count)).retry_after_seconds)
        await bench.jobs.enqueue_many(orders(bench, count))


@pytest.mark.parametrize(("rate", "burst"), [(0.5, 1), (1, 1), (2.5, 3), (10, 10)])
async def test_without_a_burst_it_is_what_comes_in_one_second(bench: Bench, rate: float, burst: int) -> None:
    await limit(bench, rate=rate)
    await bench.jobs.enqueue_many(orders(bench, burst))
    await refusal(bench)


async def test_a_long_rest_saves_up_no_more_than_the_burst(bench: Bench) -> None:
    await limit(bench, rate=100, burst=3)
    bench.clock.advance(days=1)
    await bench.jobs.enqueue_many(orders(bench, 3))
    await refusal(bench)
    bench.clock.advance(days=1)
    await bench.jobs.enqueue_many(orders(bench, 3))
    await refusal(bench)


async def test_a_call_larger_than_the_burst_is_told_how_many_fit(bench: Bench) -> None:
    await limit(bench, rate=10, burst=3)
    assert "at most 3" in (await refusal(bench, 4)).detail
    await bench.jobs.enqueue_many(orders(bench, 3))


async def test_what_is_refused_costs_nothing(bench: Bench) -> None:
    await limit(bench, rate=0.001, burst=3, max_unfinished_jobs=3)
    await bench.make_job(dedupe_key="d")
    async with refuses(bench, DuplicateJob):
        await bench.jobs.enqueue_many([*orders(bench, 1), new_job(bench.tenant, "noop", dedupe_key="d")])
    async with refuses(bench, JobLimitExceeded):
        await bench.jobs.enqueue_many(orders(bench, 3))
    await limit(bench, rate=0.001, burst=3)
    await refusal(bench, 3)
    await bench.jobs.enqueue_many(orders(bench, 2))
    await refusal(bench)


async def test_what_was_there_before_costs_nothing(bench: Bench) -> None:
    await limit(bench, rate=0.001, burst=2)
    order = new_job(bench.tenant, "noop", 1, idempotency_key="k")
    for _ in range(3):
        await bench.jobs.enqueue_many([order])
        await bench.jobs.enqueue(bench.tenant, "noop", 1, idempotency_key="k")
    await bench.make_job()
    await refusal(bench)


async def test_calls_at_once_share_the_burst(bench: Bench) -> None:
    await limit(bench, rate=0.001, burst=CAP)
    again = new_job(bench.tenant, "noop")
    await bench.jobs.enqueue_many([again])
    calls = [[again], *(orders(bench, 1) for _ in range(8))]
    answers = await asyncio.gather(*(bench.jobs.enqueue_many(call) for call in calls), return_exceptions=True)
    assert await unfinished(bench) == CAP
    assert all(isinstance(answer, list | RateLimited) for answer in answers)
    await refusal(bench)


async def test_a_retry_counts_against_the_rate(bench: Bench) -> None:
    done = await bench.make_job_in(JobStatus.SUCCEEDED)
    await limit(bench, rate=0.001, burst=2)
    await bench.jobs.retry(bench.tenant, done.id)
    await bench.jobs.cancel(bench.tenant, done.id)
    await bench.make_job()
    async with refuses(bench, RateLimited):
        await bench.jobs.retry(bench.tenant, done.id)


async def test_each_tenant_has_a_rate_of_its_own(bench: Bench) -> None:
    other = (await bench.tenants.create("other", limits=Limits(rate=0.001))).id
    await limit(bench, rate=0.001)
    await bench.make_job()
    async with refuses(bench, RateLimited):
        await bench.jobs.enqueue_many([new_job(other, "noop"), new_job(bench.tenant, "noop")])
    await bench.make_job(tenant=other)
    async with refuses(bench, RateLimited):
        await bench.make_job(tenant=other)


async def test_a_new_rate_holds_from_the_next_call_on(bench: Bench) -> None:
    await limit(bench, rate=0.001, burst=2)
    await bench.jobs.enqueue_many(orders(bench, 2))
    await refusal(bench)
    await limit(bench, rate=10, burst=2)
    bench.clock.advance(seconds=0.1)
    await bench.make_job()
    await refusal(bench)
    await limit(bench)
    await bench.jobs.enqueue_many(orders(bench, 50))


async def test_a_rate_of_nothing_names_a_wait_that_ends(bench: Bench) -> None:
    await limit(bench, rate=0, burst=1)
    await bench.make_job()
    assert 0 < (await refusal(bench)).retry_after_seconds <= 86_400


async def test_a_refusal_is_an_error_with_a_hint_like_any_other(bench: Bench) -> None:
    await limit(bench, rate=0.5)
    await bench.make_job()
    error: IngotError = await refusal(bench)
    assert (error.code, error.status) == ("rate_limited", 429)
