"""Caps: how many unfinished jobs a tenant can have, and how fast it can enqueue more."""

from __future__ import annotations

import asyncio

import pytest

from ingot.client.errors import error_from_response
from ingot.http.problems import problem_of
from ingot.http.visible_errors import visible_error
from ingot.identity import Limits
from ingot.identity.credentials import Caller
from ingot.jobs import DuplicateJob, JobLimitExceeded, JobStatus, NewJob, RateLimited
from ingot.jobs.job_options import new_job
from ingot.kernel.errors import IngotError
from tests.conformance.snapshots import refuses
from tests.factories import LEASE_SECONDS, Bench

CAP = 4
UNFINISHED = (JobStatus.BLOCKED, JobStatus.QUEUED, JobStatus.RUNNING)


async def set_limits(bench: Bench, **limits: float | int | None) -> None:
    await bench.tenants.change(bench.tenant, limits=Limits(**limits))  # type: ignore[arg-type]


def orders(bench: Bench, count: int, **options: str) -> list[NewJob]:
    return [new_job(bench.tenant, "noop", n, **options) for n in range(count)]  # type: ignore[arg-type]


async def count_unfinished(bench: Bench) -> int:
    counts = (await bench.jobs.summary(bench.tenant)).counts
    return sum(counts[status] for status in UNFINISHED)


# -- unfinished jobs ----------------------------------------------------------------------------------------


async def test_a_job_beyond_the_cap_is_refused(bench: Bench) -> None:
    await set_limits(bench, max_unfinished_jobs=CAP)
    await bench.jobs.enqueue_many(orders(bench, CAP))
    async with refuses(bench, JobLimitExceeded):
        await bench.make_job()


async def test_a_call_that_would_exceed_the_cap_is_refused_as_a_whole(bench: Bench) -> None:
    await set_limits(bench, max_unfinished_jobs=CAP)
    await bench.make_job()
    async with refuses(bench, JobLimitExceeded):
        await bench.jobs.enqueue_many(orders(bench, CAP))
    await bench.jobs.enqueue_many(orders(bench, CAP - 1))


async def test_a_cap_of_zero_refuses_every_job(bench: Bench) -> None:
    await set_limits(bench, max_unfinished_jobs=0)
    async with refuses(bench, JobLimitExceeded):
        await bench.make_job()


async def test_scheduled_and_running_jobs_count_toward_the_cap(bench: Bench) -> None:
    await set_limits(bench, max_unfinished_jobs=3)
    await bench.make_job("later", delay=1000)
    await bench.make_claim("unfinished")
    failing = await bench.make_claim("failing")
    await bench.jobs.fail(failing, "again")
    async with refuses(bench, JobLimitExceeded):
        await bench.make_job()


@pytest.mark.parametrize("how", ["succeeded", "dead", "canceled", "lost"])
async def test_a_finished_job_frees_capacity_under_the_cap(bench: Bench, how: str) -> None:
    await set_limits(bench, max_unfinished_jobs=1)
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


async def test_concurrent_calls_fill_the_cap_exactly(bench: Bench) -> None:
    most = 60  # High enough that calls are batched before the cap is reached.
    await set_limits(bench, max_unfinished_jobs=most)
    sizes = [1, 3, 2, 1, 1, 2, 3, 1] * 10
    answers = await asyncio.gather(
        *(bench.jobs.enqueue_many(orders(bench, size)) for size in sizes), return_exceptions=True
    )
    accepted = sum(size for size, answer in zip(sizes, answers, strict=True) if isinstance(answer, list))
    assert accepted == await count_unfinished(bench) == most
    assert {type(answer) for answer in answers} == {list, JobLimitExceeded}


async def test_concurrent_calls_fill_the_cap_when_resent_orders_split_the_batch(bench: Bench) -> None:
    await set_limits(bench, max_unfinished_jobs=CAP)
    (again,) = orders(bench, 1)
    await bench.jobs.enqueue_many([again])
    calls = [[again], *(orders(bench, 1) for _ in range(8)), [again]]
    answers = await asyncio.gather(*(bench.jobs.enqueue_many(call) for call in calls), return_exceptions=True)
    assert await count_unfinished(bench) == CAP
    assert [isinstance(answers[index], list) for index in (0, -1)] == [True, True]


async def test_existing_jobs_returned_by_a_call_do_not_count_toward_cap_or_rate(bench: Bench) -> None:
    await set_limits(bench, max_unfinished_jobs=CAP, rate=CAP)
    first = orders(bench, CAP)
    first[0] = new_job(bench.tenant, "noop", 0, idempotency_key="k")
    await bench.jobs.enqueue_many(first)
    for again in ([first[1]], [new_job(bench.tenant, "noop", 0, idempotency_key="k")], first):
        assert not any(enqueued.created for enqueued in await bench.jobs.enqueue_many(again))
    async with refuses(bench, JobLimitExceeded):
        await bench.jobs.enqueue_many([first[1], *orders(bench, 1)])


async def test_a_refused_order_is_refused_again_when_resent(bench: Bench) -> None:
    await set_limits(bench, max_unfinished_jobs=1)
    await bench.make_job()
    (order,) = orders(bench, 1)
    calls = (bench.jobs.enqueue_many([order]) for _ in range(3))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(answer) for answer in answers} == {JobLimitExceeded}
    assert await count_unfinished(bench) == 1


async def test_a_retry_counts_toward_the_cap(bench: Bench) -> None:
    await set_limits(bench, max_unfinished_jobs=1)
    done = await bench.make_job_in(JobStatus.SUCCEEDED)
    unfinished = await bench.make_job("unfinished")
    async with refuses(bench, JobLimitExceeded):
        await bench.jobs.retry(bench.tenant, done.id)
    await bench.jobs.cancel(bench.tenant, unfinished.id)
    await bench.jobs.retry(bench.tenant, done.id)
    async with refuses(bench, JobLimitExceeded):
        await bench.make_job()


async def test_concurrent_retries_fill_the_cap_exactly(bench: Bench) -> None:
    done = [await bench.make_job_in(JobStatus.SUCCEEDED) for _ in range(CAP)]
    await set_limits(bench, max_unfinished_jobs=2)
    calls = (bench.jobs.retry(bench.tenant, job.id) for job in done)
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(answer, JobLimitExceeded) for answer in answers) == CAP - 2
    assert await count_unfinished(bench) == 2


async def test_a_changed_cap_applies_from_the_next_call(bench: Bench) -> None:
    await set_limits(bench, max_unfinished_jobs=CAP)
    await bench.jobs.enqueue_many(orders(bench, CAP))
    await set_limits(bench, max_unfinished_jobs=CAP + 1)
    await bench.make_job()
    await set_limits(bench, max_unfinished_jobs=2)
    async with refuses(bench, JobLimitExceeded):
        await bench.make_job()
    await set_limits(bench)
    await bench.make_job()


async def test_the_cap_of_one_tenant_does_not_affect_another(bench: Bench) -> None:
    other = (await bench.tenants.create("other")).id
    await set_limits(bench, max_unfinished_jobs=0)
    await bench.make_job(tenant=other)
    async with refuses(bench, JobLimitExceeded):
        await bench.jobs.enqueue_many([new_job(other, "noop"), new_job(bench.tenant, "noop")])


async def test_a_released_job_is_accepted_above_the_cap(bench: Bench) -> None:
    claim = await bench.make_claim()
    await bench.make_job("other")
    await set_limits(bench, max_unfinished_jobs=1)
    await bench.jobs.release(claim)
    assert (await bench.reload(claim)).status is JobStatus.QUEUED


# -- rate ---------------------------------------------------------------------------------------------------


async def expect_rate_limited(bench: Bench, count: int = 1) -> RateLimited:
    async with refuses(bench, RateLimited) as caught:
        await bench.jobs.enqueue_many(orders(bench, count))
    assert isinstance(caught.value, RateLimited)
    return caught.value


async def test_a_tenant_can_enqueue_its_burst_and_then_jobs_at_its_rate(bench: Bench) -> None:
    await set_limits(bench, rate=2, burst=5)
    await bench.jobs.enqueue_many(orders(bench, 5))
    for _ in range(3):
        assert (await expect_rate_limited(bench)).retry_after_seconds == pytest.approx(0.5, abs=0.001)
        bench.clock.advance(seconds=0.49)
        await expect_rate_limited(bench)
        bench.clock.advance(seconds=0.01)
        await bench.make_job()


async def test_a_call_succeeds_after_retry_after_seconds(bench: Bench) -> None:
    await set_limits(bench, rate=0.3, burst=7)
    await bench.jobs.enqueue_many(orders(bench, 7))
    for count in (1, 3, 7, 2):
        bench.clock.advance(seconds=(await expect_rate_limited(bench, count)).retry_after_seconds)
        await bench.jobs.enqueue_many(orders(bench, count))


@pytest.mark.parametrize(("rate", "burst"), [(0.5, 1), (1, 1), (2.5, 3), (10, 10)])
async def test_the_default_burst_is_one_second_of_the_rate(bench: Bench, rate: float, burst: int) -> None:
    await set_limits(bench, rate=rate)
    await bench.jobs.enqueue_many(orders(bench, burst))
    await expect_rate_limited(bench)


async def test_an_idle_tenant_saves_up_at_most_its_burst(bench: Bench) -> None:
    await set_limits(bench, rate=100, burst=3)
    bench.clock.advance(days=1)
    await bench.jobs.enqueue_many(orders(bench, 3))
    await expect_rate_limited(bench)
    bench.clock.advance(days=1)
    await bench.jobs.enqueue_many(orders(bench, 3))
    await expect_rate_limited(bench)


async def test_the_error_for_a_call_larger_than_the_burst_names_the_burst(bench: Bench) -> None:
    await set_limits(bench, rate=10, burst=3)
    assert "at most 3" in (await expect_rate_limited(bench, 4)).detail
    await bench.jobs.enqueue_many(orders(bench, 3))


async def test_refused_calls_do_not_use_up_the_burst(bench: Bench) -> None:
    await set_limits(bench, rate=0.001, burst=3, max_unfinished_jobs=3)
    await bench.make_job(dedupe_key="d")
    async with refuses(bench, DuplicateJob):
        await bench.jobs.enqueue_many([*orders(bench, 1), new_job(bench.tenant, "noop", dedupe_key="d")])
    async with refuses(bench, JobLimitExceeded):
        await bench.jobs.enqueue_many(orders(bench, 3))
    await set_limits(bench, rate=0.001, burst=3)
    await expect_rate_limited(bench, 3)
    await bench.jobs.enqueue_many(orders(bench, 2))
    await expect_rate_limited(bench)


async def test_resent_orders_do_not_use_up_the_burst(bench: Bench) -> None:
    await set_limits(bench, rate=0.001, burst=2)
    order = new_job(bench.tenant, "noop", 1, idempotency_key="k")
    for _ in range(3):
        await bench.jobs.enqueue_many([order])
        await bench.jobs.enqueue(bench.tenant, "noop", 1, idempotency_key="k")
    await bench.make_job()
    await expect_rate_limited(bench)


async def test_concurrent_calls_share_the_burst(bench: Bench) -> None:
    await set_limits(bench, rate=0.001, burst=CAP)
    again = new_job(bench.tenant, "noop")
    await bench.jobs.enqueue_many([again])
    calls = [[again], *(orders(bench, 1) for _ in range(8))]
    answers = await asyncio.gather(*(bench.jobs.enqueue_many(call) for call in calls), return_exceptions=True)
    assert await count_unfinished(bench) == CAP
    assert all(isinstance(answer, list | RateLimited) for answer in answers)
    await expect_rate_limited(bench)


async def test_a_retry_counts_against_the_rate(bench: Bench) -> None:
    done = await bench.make_job_in(JobStatus.SUCCEEDED)
    await set_limits(bench, rate=0.001, burst=2)
    await bench.jobs.retry(bench.tenant, done.id)
    await bench.jobs.cancel(bench.tenant, done.id)
    await bench.make_job()
    async with refuses(bench, RateLimited):
        await bench.jobs.retry(bench.tenant, done.id)


async def test_each_tenant_has_its_own_rate(bench: Bench) -> None:
    other = (await bench.tenants.create("other", limits=Limits(rate=0.001))).id
    await set_limits(bench, rate=0.001)
    await bench.make_job()
    async with refuses(bench, RateLimited):
        await bench.jobs.enqueue_many([new_job(other, "noop"), new_job(bench.tenant, "noop")])
    await bench.make_job(tenant=other)
    async with refuses(bench, RateLimited):
        await bench.make_job(tenant=other)


async def test_a_changed_rate_applies_from_the_next_call(bench: Bench) -> None:
    await set_limits(bench, rate=0.001, burst=2)
    await bench.jobs.enqueue_many(orders(bench, 2))
    await expect_rate_limited(bench)
    await set_limits(bench, rate=10, burst=2)
    bench.clock.advance(seconds=0.1)
    await bench.make_job()
    await expect_rate_limited(bench)
    await set_limits(bench)
    await bench.jobs.enqueue_many(orders(bench, 50))


async def test_the_response_has_the_time_to_wait_whoever_asks(bench: Bench) -> None:
    await set_limits(bench, rate=0.4, burst=1)
    await bench.make_job()
    error = await expect_rate_limited(bench)
    for response_error in (error, visible_error(error, Caller(id="t", kind="token", tenant=bench.tenant, grants=()))):
        status, headers, body = problem_of(response_error)
        assert (status, headers["retry-after"]) == (429, "3")
        client_error = error_from_response(status, body)
        assert isinstance(client_error, RateLimited)
        assert client_error.retry_after_seconds == pytest.approx(2.5, abs=0.01)


async def test_a_rate_of_zero_returns_a_finite_retry_after(bench: Bench) -> None:
    await set_limits(bench, rate=0, burst=1)
    await bench.make_job()
    assert 0 < (await expect_rate_limited(bench)).retry_after_seconds <= 86_400


async def test_a_rate_limit_error_has_code_status_and_hint(bench: Bench) -> None:
    await set_limits(bench, rate=0.5)
    await bench.make_job()
    error: IngotError = await expect_rate_limited(bench)
    assert (error.code, error.status) == ("rate_limited", 429)
