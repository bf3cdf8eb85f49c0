"""A tenant that floods the store with commands or reads leaves threads, batches and space in the queue to others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import ingot.engines.sqlite.writer as writer_module
from ingot.engines.sqlite.commands import READS
from ingot.engines.sqlite.readers import READER_THREADS, Reader, ReadHandler
from ingot.jobs import Job
from ingot.jobs.job_options import new_job
from ingot.jobs.ports import Enqueue, ListJobs
from ingot.kernel.errors import StoreBusy
from tests.engines.sqlite.commit_gate import CommitGate
from tests.factories import Bench, open_bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench("sqlite", tmp_path / "data") as bench:
        yield bench


@pytest.fixture
async def other(bench: Bench) -> str:
    return (await bench.tenants.create("other")).id


def jobs_before(bench: Bench, job: Job) -> int:
    """Return how many jobs were accepted before this one."""
    return int(bench.sqlite.connection.execute("SELECT number - 1 FROM states WHERE id = ?", (job.id,)).get)


async def test_a_command_does_not_wait_for_the_queue_of_another_tenant(bench: Bench, other: str) -> None:
    gate = CommitGate(bench)
    first = asyncio.create_task(bench.make_job())
    await gate.reached()
    flood = [asyncio.ensure_future(bench.make_job()) for _ in range(3 * writer_module.BATCH_COMMANDS_MAX)]
    await asyncio.sleep(0)
    answer = asyncio.ensure_future(bench.make_job(tenant=other))
    await asyncio.sleep(0)
    gate.open()
    await asyncio.gather(first, *flood)
    assert jobs_before(bench, await answer) <= writer_module.BATCH_COMMANDS_MAX


async def test_a_large_command_is_a_batch_of_its_own(bench: Bench, other: str) -> None:
    gate = CommitGate(bench)
    first = asyncio.create_task(bench.make_job())
    await gate.reached()
    orders = [[new_job(bench.tenant, "noop") for _ in range(9_000)] for _ in range(3)]
    flood = [asyncio.ensure_future(bench.store.run(Enqueue(jobs=jobs))) for jobs in orders]
    await asyncio.sleep(0)
    answer = asyncio.ensure_future(bench.make_job(tenant=other))
    await asyncio.sleep(0)
    gate.open()
    await asyncio.gather(first, *flood)
    assert jobs_before(bench, await answer) <= 1 + 9_000


async def test_a_small_command_shares_no_batch_with_large_ones(bench: Bench, other: str) -> None:
    gate = CommitGate(bench)
    first = asyncio.create_task(bench.make_job())
    await gate.reached()
    orders = [[new_job(bench.tenant, "noop") for _ in range(200)] for _ in range(5)]
    flood = [asyncio.ensure_future(bench.store.run(Enqueue(jobs=jobs))) for jobs in orders]
    await asyncio.sleep(0)
    answer = asyncio.ensure_future(bench.make_job(tenant=other))
    await asyncio.sleep(0)
    gate.open()
    await asyncio.gather(first, *flood)
    assert jobs_before(bench, await answer) == 1


async def test_large_commands_take_turns_with_a_flood_of_small_ones(bench: Bench, other: str) -> None:
    gate = CommitGate(bench)
    first = asyncio.create_task(bench.make_job())
    await gate.reached()
    flood = [asyncio.ensure_future(bench.make_job()) for _ in range(8 * writer_module.BATCH_COMMANDS_MAX)]
    await asyncio.sleep(0)
    orders = [new_job(other, "noop") for _ in range(200)]
    answer = asyncio.ensure_future(bench.store.run(Enqueue(jobs=orders)))
    await asyncio.sleep(0)
    gate.open()
    await answer
    # Batches that committed before this test continued count too.
    assert sum(command.done() for command in flood) <= 5 * writer_module.BATCH_COMMANDS_MAX
    await asyncio.gather(first, *flood)


async def test_a_flood_of_cancels_shares_small_batches(bench: Bench, other: str) -> None:
    enqueued = await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", delay=3600) for _ in range(200)])
    gate = CommitGate(bench)
    first = asyncio.create_task(bench.make_job())
    await gate.reached()
    flood = [asyncio.ensure_future(bench.jobs.cancel(bench.tenant, entry.job.id)) for entry in enqueued]
    await asyncio.sleep(0)
    answer = asyncio.ensure_future(bench.make_job(tenant=other))
    await asyncio.sleep(0)
    gate.open()
    await answer
    batch = writer_module.BATCH_COMMANDS_MAX // writer_module.COSTLY_WEIGHT
    assert sum(command.done() for command in flood) <= 5 * batch < len(flood)
    await asyncio.gather(first, *flood)


async def test_a_flood_of_commands_leaves_space_in_the_queue(
    bench: Bench, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "QUEUED_COMMANDS_MAX", 100)
    flood = [asyncio.ensure_future(bench.make_job()) for _ in range(300)]
    await asyncio.sleep(0)
    assert isinstance(await bench.make_job(tenant=other), Job)
    kinds = {type(answer) for answer in await asyncio.gather(*flood, return_exceptions=True)}
    assert kinds == {Job, StoreBusy}


async def test_slow_reads_of_one_tenant_leave_a_thread_to_others(
    bench: Bench, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await bench.make_job(tenant=other)
    gate, running = threading.Event(), []

    def list_slowly(reader: Reader, command: ListJobs) -> tuple[list[Job], str | None]:
        running.append(command)
        gate.wait()
        return [], None

    reads: dict[Any, ReadHandler] = READS
    monkeypatch.setitem(reads, ListJobs, list_slowly)
    lists = [asyncio.ensure_future(bench.jobs.list(bench.tenant)) for _ in range(800)]
    try:
        await asyncio.sleep(0)
        for task in lists[-10:]:
            task.cancel()  # A read whose caller is gone is not run.
        assert (await bench.jobs.get(other, job.id)).id == job.id
        assert (await bench.make_job(tenant=other)).tenant == other
        assert len(running) == READER_THREADS - 1
    finally:
        gate.set()
    await asyncio.gather(*lists, return_exceptions=True)
    assert len(running) == 790
