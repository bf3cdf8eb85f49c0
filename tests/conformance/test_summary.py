"""Summaries: a tenant's jobs in numbers, by every filter that a list has."""

from __future__ import annotations

import pytest

from ingot.identity import TenantNotFound
from ingot.jobs import JobStatus, Source
from ingot.jobs.job_options import new_job
from ingot.kernel.ids import new_id
from tests.conformance.filtered_jobs import fill, fits, read_all, some_filters
from tests.factories import Bench

LOOKS = 10_000


@pytest.mark.parametrize("ids", ["right", "mixed"])
async def test_a_summary_counts_what_fits_its_filters_and_nothing_else(bench: Bench, ids: str) -> None:
    await fill(bench, ids=ids)
    everything = await read_all(bench)
    wrong = {}
    for filters in some_filters():
        fitting = [job.status for job in everything if fits(job, filters)]
        asked = [filters["status"]] if "status" in filters else list(JobStatus)
        expected = {status: fitting.count(status) for status in asked}
        found = await bench.jobs.summary(bench.tenant, **filters)
        if (found.counts, found.running, found.more) != (expected, fitting.count(JobStatus.RUNNING), False):
            wrong[str(filters)] = (found, expected)
    assert wrong == {}


async def test_the_age_of_the_oldest_work_is_that_of_the_type_asked_for(bench: Bench) -> None:
    await bench.make_job("old")
    bench.clock.advance(seconds=30)
    await bench.make_job("new")
    bench.clock.advance(seconds=10)
    ages = [
        (await bench.jobs.summary(bench.tenant, **filters)).oldest_queued_seconds  # type: ignore[arg-type]
        for filters in (
            {},
            {"type": "old"},
            {"type": "new"},
            {"type": "none"},
            {"type": "new", "status": JobStatus.QUEUED},
            {"type": "new", "status": JobStatus.RUNNING},
            {"type": "new", "source": Source.MANUAL},
        )
    ]
    assert ages == [40, 40, 10, None, 10, None, None]


async def test_more_jobs_than_are_looked_at_are_told_of(bench: Bench) -> None:
    tenant = bench.tenant
    await bench.jobs.enqueue_many([new_job(tenant, "many", tags=["red"]) for _ in range(LOOKS - 100)])
    exact = await bench.jobs.summary(tenant, tag="red")
    assert (exact.counts[JobStatus.QUEUED], exact.more) == (LOOKS - 100, False)
    await bench.jobs.enqueue_many([new_job(tenant, "many", tags=["red"]) for _ in range(700)])
    bounded = await bench.jobs.summary(tenant, tag="red")
    assert (bounded.counts[JobStatus.QUEUED], bounded.more) == (LOOKS, True)
    assert (await bench.jobs.summary(tenant, tag="red", status=JobStatus.DEAD)).counts == {JobStatus.DEAD: 0}
    whole = await bench.jobs.summary(tenant, type="many")
    assert (whole.counts[JobStatus.QUEUED], whole.more) == (LOOKS + 600, False)


async def test_a_summary_of_a_tenant_that_is_not_there_is_refused(bench: Bench) -> None:
    for filters in ({}, {"type": "noop"}, {"tag": "red"}):
        with pytest.raises(TenantNotFound):
            await bench.jobs.summary(new_id(), **filters)  # type: ignore[arg-type]
