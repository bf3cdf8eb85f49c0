"""Summaries: the number of jobs of a tenant, with the same filters as lists."""

from __future__ import annotations

import pytest

from ingot.identity import TenantNotFound
from ingot.jobs import JobStatus, Source
from ingot.jobs.job_options import new_job
from ingot.kernel.ids import new_id
from tests.conformance.filtered_jobs import fill, fits, read_all, some_filters
from tests.factories import Bench

COUNTED_MAX = 10_000


@pytest.mark.parametrize("ids", ["right", "mixed"])
async def test_a_summary_counts_exactly_the_jobs_that_match_its_filters(bench: Bench, ids: str) -> None:
    await fill(bench, ids=ids)
    everything = await read_all(bench)
    wrong = {}
    for filters in some_filters():
        matching = [job.status for job in everything if fits(job, filters)]
        statuses = [filters["status"]] if "status" in filters else list(JobStatus)
        expected = {status: matching.count(status) for status in statuses}
        summary = await bench.jobs.summary(bench.tenant, **filters)
        if (summary.counts, summary.running, summary.more) != (expected, matching.count(JobStatus.RUNNING), False):
            wrong[str(filters)] = (summary, expected)
    assert wrong == {}


async def test_oldest_queued_seconds_covers_only_the_filtered_type(bench: Bench) -> None:
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


async def test_a_summary_with_more_jobs_than_the_maximum_reports_more(bench: Bench) -> None:
    tenant = bench.tenant
    await bench.jobs.enqueue_many([new_job(tenant, "many", tags=["red"]) for _ in range(COUNTED_MAX - 100)])
    exact = await bench.jobs.summary(tenant, tag="red")
    assert (exact.counts[JobStatus.QUEUED], exact.more) == (COUNTED_MAX - 100, False)
    await bench.jobs.enqueue_many([new_job(tenant, "many", tags=["red"]) for _ in range(700)])
    bounded = await bench.jobs.summary(tenant, tag="red")
    assert (bounded.counts[JobStatus.QUEUED], bounded.more) == (COUNTED_MAX, True)
    assert (await bench.jobs.summary(tenant, tag="red", status=JobStatus.DEAD)).counts == {JobStatus.DEAD: 0}
    whole = await bench.jobs.summary(tenant, type="many")
    assert (whole.counts[JobStatus.QUEUED], whole.more) == (COUNTED_MAX + 600, False)


async def test_a_summary_of_a_missing_tenant_is_refused(bench: Bench) -> None:
    for filters in ({}, {"type": "noop"}, {"tag": "red"}):
        with pytest.raises(TenantNotFound):
            await bench.jobs.summary(new_id(), **filters)  # type: ignore[arg-type]
