"""Dependents on PostgreSQL when the process that ended a job stops first: another process releases them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import msgspec
import pytest

from ingot.engines.postgres import PostgresStore
from ingot.jobs import Batch, Done, JobStatus
from ingot.jobs.job_options import new_job
from ingot.kernel.clock import ManualClock
from tests.conformance.job_endings import all_events, counted
from tests.factories import Bench, open_bench
from tests.postgres import database_for
from tests.waiting import eventually

RELEASE = "SELECT * FROM ingot.release_dependents($1, 1000)"
WAITS_FOR_A_LOCK = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1"


@asynccontextmanager
async def open_without_dependents(folder: Path, clock: ManualClock) -> AsyncIterator[Bench]:
    """Open a process that never releases dependents."""
    async with open_bench("postgres", folder, clock) as bench:
        _store(bench).lane_cache.jobs_ended_callbacks.clear()
        yield bench


def _store(bench: Bench) -> PostgresStore:
    assert isinstance(bench.store, PostgresStore)
    return bench.store


@pytest.mark.parametrize("status", [JobStatus.SUCCEEDED, JobStatus.CANCELED])
async def test_another_process_releases_or_cancels_dependents(tmp_path: Path, status: JobStatus) -> None:
    clock = ManualClock()
    async with open_without_dependents(tmp_path / "data", clock) as bench:
        parent = new_job(bench.tenant, "first")
        middle = [new_job(bench.tenant, "second", after=[parent.id]) for _ in range(1500)]
        last = new_job(bench.tenant, "third", after=[order.id for order in middle[:1000]])
        await bench.jobs.enqueue_many([parent, *middle, last])
        if status is JobStatus.CANCELED:
            await bench.jobs.cancel(bench.tenant, parent.id)
        else:
            (claim,) = await bench.jobs.claim("worker", ["first"])
            await bench.jobs.complete(claim)
        assert (await counted(bench))[JobStatus.BLOCKED] == 1501
    async with open_bench("postgres", tmp_path / "data", clock) as bench:
        await _store(bench).dependents.release_missed()
        expected = {JobStatus.SUCCEEDED: 1, JobStatus.QUEUED: 1500, JobStatus.BLOCKED: 1}
        assert await counted(bench) == ({JobStatus.CANCELED: 1502} if status is JobStatus.CANCELED else expected)


async def test_another_process_publishes_the_completion_of_a_batch_once(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_without_dependents(tmp_path / "data", clock) as bench:
        claims = [await bench.make_claim(batch="batch") for _ in range(3)]
        for claim in claims:
            await bench.jobs.complete(claim)
        assert "batch.completed" not in [event.name for event in await all_events(bench)]
    async with open_bench("postgres", tmp_path / "data", clock) as bench:
        for _ in range(3):
            await _store(bench).dependents.fold_batches()
        completions = [event.data for event in await all_events(bench) if event.name == "batch.completed"]
        assert [msgspec.json.decode(data, type=Batch) for data in completions] == [
            Batch(batch="batch", total=3, unfinished=0, succeeded=3)
        ]


async def test_concurrent_releases_of_two_parents_release_their_dependent(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_without_dependents(tmp_path / "data", clock) as bench:
        parents = [(await bench.make_claim()).job for _ in range(2)]
        child = await bench.make_job("child", after=[job.id for job in parents])
        one, two = parents
        for job in parents:
            await bench.jobs.settle(job.id, job.fence, Done())
        url = (await database_for(tmp_path / "data")).owner_url
        first, second, watcher = [await asyncpg.connect(url) for _ in range(3)]
        try:
            open_transaction = first.transaction()
            await open_transaction.start()
            await first.fetch(RELEASE, [one.id])
            other = asyncio.create_task(second.fetch(RELEASE, [two.id]))

            async def is_blocked() -> bool:
                return other.done() or bool(await watcher.fetchval(WAITS_FOR_A_LOCK, second.get_server_pid()))

            await eventually(is_blocked)
            await open_transaction.commit()
            await other
        finally:
            for connection in (first, second, watcher):
                await connection.close()
        assert (await bench.reload(child)).status is JobStatus.QUEUED
