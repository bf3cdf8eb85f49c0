"""Waiting for a job to be finished."""

from __future__ import annotations

import asyncio

import pytest

from ingot.jobs import JobNotFound, Jobs, JobStatus
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from tests.factories import LEASE_SECONDS, Bench


async def test_who_waits_is_told_when_the_job_ends(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingot.jobs.queries.POLL_SECONDS_MIN", 60.0)  # So that it is told, and not found by looking.
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


async def test_what_ends_elsewhere_is_found_by_looking(bench: Bench) -> None:
    claim = await bench.make_claim()
    waiting = asyncio.create_task(bench.jobs.wait(bench.tenant, claim.job.id, seconds=60))
    await asyncio.sleep(0.05)
    await Jobs(bench.store, lease_seconds=LEASE_SECONDS).complete(claim)  # It tells only those who wait with it.
    async with asyncio.timeout(30):
        assert (await waiting).status is JobStatus.SUCCEEDED


async def test_who_waits_in_vain_is_told_how_it_stands(bench: Bench) -> None:
    job = await bench.make_job()
    assert (await bench.jobs.wait(bench.tenant, job.id, seconds=0.05)).status is JobStatus.QUEUED
    assert (await bench.jobs.wait(bench.tenant, job.id, seconds=0)).status is JobStatus.QUEUED
    with pytest.raises(JobNotFound):
        await bench.jobs.wait(bench.tenant, new_id(), seconds=60)
    with pytest.raises(InvalidInput):
        await bench.jobs.wait(bench.tenant, job.id, seconds=3600)


async def test_nobody_waits_for_a_store_that_is_closed(bench: Bench) -> None:
    job = await bench.make_job()
    waiting = asyncio.create_task(bench.jobs.wait(bench.tenant, job.id, seconds=60))
    await asyncio.sleep(0.05)
    bench.jobs.stop_waiting()
    async with asyncio.timeout(30):
        assert (await waiting).status is JobStatus.QUEUED
