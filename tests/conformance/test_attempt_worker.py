"""A call restricted to a worker affects only attempts of that worker."""

from __future__ import annotations

import pytest

from ingot.jobs import Done, JobStatus, LeaseLost, Settle, Settled
from tests.conformance.snapshots import refuses
from tests.factories import Bench


@pytest.mark.parametrize("worker", ["press/2", "pres", "press/1/x", "other"])
async def test_another_workers_attempt_can_neither_be_renewed_nor_settled(bench: Bench, worker: str) -> None:
    job = await bench.make_job()
    (claim,) = await bench.jobs.claim("press/1", ["noop"])
    async with refuses(bench, LeaseLost):
        await bench.jobs.heartbeat(job.id, claim.fence, worker=worker)
    async with refuses(bench, LeaseLost):
        await bench.jobs.settle(job.id, claim.fence, Done(), worker=worker)


@pytest.mark.parametrize("worker", ["press/1", "press"])
async def test_a_worker_and_its_credential_can_renew_and_settle_its_attempts(bench: Bench, worker: str) -> None:
    job = await bench.make_job()
    (claim,) = await bench.jobs.claim("press/1", ["noop"])
    assert (await bench.jobs.heartbeat(job.id, claim.fence, worker=worker)).job_id == job.id
    first = await bench.jobs.settle(job.id, claim.fence, Done(), worker=worker)
    assert first.status is JobStatus.SUCCEEDED
    assert await bench.jobs.settle(job.id, claim.fence, Done(), worker=worker) == first


async def test_a_repeated_settle_by_another_worker_is_refused(bench: Bench) -> None:
    job = await bench.make_job()
    (claim,) = await bench.jobs.claim("press/1", ["noop"])
    await bench.jobs.settle(job.id, claim.fence, Done(), worker="press")
    async with refuses(bench, LeaseLost):
        await bench.jobs.settle(job.id, claim.fence, Done(), worker="other")


async def test_each_settle_of_a_call_is_restricted_to_its_own_worker(bench: Bench) -> None:
    for _ in range(2):
        await bench.make_job()
    claims = await bench.jobs.claim("press/1", ["noop"], limit=2)
    settles = [
        Settle(job_id=claim.job.id, fence=claim.fence, outcome=Done(), worker=worker)
        for claim, worker in [(claims[0], "other"), (claims[0], "press"), (claims[0], "other"), (claims[1], None)]
    ]
    answers = await bench.jobs.settle_many(settles)
    assert [type(answer) for answer in answers] == [LeaseLost, Settled, LeaseLost, Settled]
