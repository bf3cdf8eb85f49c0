"""Dependents in SQLite: released in short steps of the writer, at no cost for jobs without dependents."""

from __future__ import annotations

from pathlib import Path

from ingot.engines.sqlite.dependents import RELEASE_EDGES_MAX, RELEASE_ROUNDS_MAX
from ingot.jobs import JobStatus, NewJob
from ingot.jobs.job_options import new_job
from tests.engines.sqlite.plans.meter import metered
from tests.factories import open_bench

RELEASE_STATEMENTS = {"edges_to_close", "close_edges", "close_edges_of_jobs", "unblocked_jobs"}
BATCH_STATEMENTS = {"add_batches", "completed_batches"}


async def test_a_step_releases_a_limited_number_and_schedules_the_next(tmp_path: Path) -> None:
    async with open_bench("sqlite", tmp_path / "data") as bench:
        parent = await bench.make_job("first")
        orders = [new_job(bench.tenant, "second", after=[parent.id]) for _ in range(2 * RELEASE_EDGES_MAX + 1)]
        await bench.jobs.enqueue_many(orders)
        (claim,) = await bench.jobs.claim("worker", ["first"])
        await bench.jobs.complete(claim)
        remaining = len(orders)
        while remaining:
            remaining -= min(remaining, RELEASE_EDGES_MAX)
            assert (await bench.jobs.summary(bench.tenant)).counts[JobStatus.BLOCKED] == remaining
            assert (bench.store.seconds_to_maintenance() == 0) is (remaining > 0)
            await bench.jobs.maintain()


async def test_a_chain_is_canceled_in_limited_steps(tmp_path: Path) -> None:
    async with open_bench("sqlite", tmp_path / "data") as bench:
        chain: list[NewJob] = []
        for _ in range(3 * RELEASE_ROUNDS_MAX):
            chain.append(new_job(bench.tenant, "link", after=[order.id for order in chain[-1:]]))
        await bench.jobs.enqueue_many(chain)
        await bench.jobs.cancel(bench.tenant, chain[0].id)
        canceled = 1 + RELEASE_ROUNDS_MAX
        while canceled < len(chain):
            assert (await bench.jobs.summary(bench.tenant)).counts[JobStatus.CANCELED] == canceled
            assert bench.store.seconds_to_maintenance() == 0
            await bench.jobs.maintain()
            canceled = min(len(chain), canceled + RELEASE_ROUNDS_MAX)
        assert (await bench.jobs.summary(bench.tenant)).counts[JobStatus.CANCELED] == len(chain)


async def test_a_job_without_dependents_runs_no_release_statements(tmp_path: Path) -> None:
    with metered() as meter:
        async with open_bench("sqlite", tmp_path / "data") as bench:
            parent = await bench.make_job("first")
            await bench.make_job("second", after=[parent.id])
            claim = await bench.make_claim()
            await bench.jobs.complete(claim)
            job = await bench.make_job()
            await bench.jobs.cancel(bench.tenant, job.id)
            await bench.jobs.maintain()
            assert RELEASE_STATEMENTS & meter.steps.keys() == set()
            await bench.jobs.cancel(bench.tenant, parent.id)
            assert meter.steps.keys() >= RELEASE_STATEMENTS
            assert BATCH_STATEMENTS & meter.steps.keys() == set()
