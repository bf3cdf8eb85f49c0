"""Waiting until a job has finished."""

from __future__ import annotations

import asyncio

import pytest

from ingot.jobs import JobNotFound, Jobs, JobStatus
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from tests.factories import LEASE_SECONDS, Bench


async def test_a_wait_ends_with_a_notification_when_the_job_finishes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ingot.jobs.queries.POLL_SECONDS_MIN", 60.0
    )  # No poll within the test: only the notification can end the wait.
    claim = await bench.make_claim()
    waiting = asyncio.create_task(bench.jobs.wait(bench.tenant, claim.job.id, seconds=60))
    await asyncio.sleep(0.05)
    await bench.jobs.complete(claim, "done")
    async with asyncio.timeout(30):
        assert (await waiting).read("result") == "done"
    job = await bench.make_job()
    waiting = asyncio.create_task(bench.jobs.wait(bench.tenant, job.id, seconds=60))
    await asyncio.sleep(0.05)
    await bench.jobs.cancel(bench.tenant, job.id)
    async with asyncio.timeout(30):
        assert (await waiting).status is JobStatus.CANCELED


async def test_a_wait_finds_a_job_finished_by_another_service_by_polling(bench: Bench) -> None:
    claim = await bench.make_claim()
    waiting = asyncio.create_task(bench.jobs.wait(bench.tenant, claim.job.id, seconds=60))
    await asyncio.sleep(0.05)
    await Jobs(bench.store, lease_seconds=LEASE_SECONDS).complete(claim)  # Another service does not notify this one.
    async with asyncio.timeout(30):
        assert (await waiting).status is JobStatus.SUCCEEDED


async def test_a_wait_that_times_out_returns_the_current_job(bench: Bench) -> None:
    job = await bench.make_job()
    assert (await bench.jobs.wait(bench.tenant, job.id, seconds=0.05)).status is JobStatus.QUEUED
    assert (await bench.jobs.wait(bench.tenant, job.id, seconds=0)).status is JobStatus.QUEUED
    with pytest.raises(JobNotFound):
        await bench.jobs.wait(bench.tenant, new_id(), seconds=60)
    with pytest.raises(InvalidInput):
        await bench.jobs.wait(bench.tenant, job.id, seconds=3600)


async def test_a_wait_ends_when_the_server_stops(bench: Bench) -> None:
    job = await bench.make_job()
    waiting = asyncio.create_task(bench.jobs.wait(bench.tenant, job.id, seconds=60))
    await asyncio.sleep(0.05)
    bench.jobs.stop_waiting()
    async with asyncio.timeout(30):
        assert (await waiting).status is JobStatus.QUEUED
