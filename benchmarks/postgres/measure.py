"""Measures the five scenarios of a system whose callers and worker run on one event loop."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final

import asyncpg

from benchmarks.postgres.adapter import Queue, RunRequest, RunResult, System
from benchmarks.postgres.open_transaction import measure_open_transaction
from benchmarks.postgres.start_counter import StartCounter
from benchmarks.queue.adapter import payload
from benchmarks.queue.meter import Meter

SETTLED_POLL_SECONDS: Final = 0.01
GAP_SECONDS: Final = (0.005, 0.03)
START_SECONDS_MAX: Final = 30
IDLE_SECONDS: Final = 1.5  # After this time, a worker that has just started is idle.
FILL_CALLERS: Final = 4
FILL_JOBS: Final = 500


async def measure(system: System, request: RunRequest) -> RunResult:
    """Open the system in its database and run the requested scenario."""
    assert system.open is not None
    scenarios: dict[str, Callable[[Queue, RunRequest, System], Awaitable[RunResult]]] = {
        "single": single,
        "bulk": bulk,
        "run": run,
        "latency": latency,
        "held": measure_open_transaction,
    }
    async with system.open(request.url, request.options) as queue:
        return await scenarios[request.scenario](queue, request, system)


async def single(queue: Queue, request: RunRequest, system: System) -> RunResult:
    """Measure callers that enqueue single jobs."""
    meter, numbers = Meter(), count()

    async def call() -> None:
        while meter.running:
            began = time.perf_counter()
            await queue.put(payload(next(numbers)))
            meter.record(began)

    async with asyncio.TaskGroup() as group:
        for _ in range(request.options.callers):
            group.create_task(call())
        await asyncio.sleep(request.warm_seconds)
        meter.counting, began = True, time.perf_counter()
        await asyncio.sleep(request.seconds)
        meter.counting, seconds = False, time.perf_counter() - began
        meter.running = False
    if request.drain_after:
        await drain(queue, request, system)
    return RunResult(len(meter.latencies) / seconds, meter.percentile_ms(50), meter.percentile_ms(99))


async def drain(queue: Queue, request: RunRequest, system: System) -> None:
    """Run the remaining jobs, because the database is used again."""
    connection = await asyncpg.connect(request.url)
    async with queue.working(lambda number: None):
        await await_settled(connection, system.unsettled)
    await connection.close()


async def await_settled(connection: asyncpg.Connection[asyncpg.Record], unsettled: str) -> None:
    """Wait until all jobs have ended."""
    while await connection.fetchval(unsettled):  # noqa: ASYNC110 - the state is in the database
        await asyncio.sleep(SETTLED_POLL_SECONDS)


async def bulk(queue: Queue, request: RunRequest, system: System) -> RunResult:
    """Measure callers that enqueue batches."""
    size = request.options.batch_jobs
    numbers = count(step=size)
    prepared = [payload(number) for number in range(size)]  # Created before the time is measured.
    enqueued, running, counting = 0, True, False

    async def call() -> None:
        nonlocal enqueued
        while running:
            number = next(numbers)
            jobs = [{**job, "number": number + index} for index, job in enumerate(prepared)]
            await queue.put_many(jobs)
            if counting:
                enqueued += size

    async with asyncio.TaskGroup() as group:
        for _ in range(request.options.callers):
            group.create_task(call())
        await asyncio.sleep(request.warm_seconds)
        counting, began = True, time.perf_counter()
        await asyncio.sleep(request.seconds)
        counting, seconds = False, time.perf_counter() - began
        running = False
    return RunResult(enqueued / seconds)


async def run(queue: Queue, request: RunRequest, system: System) -> RunResult:
    """Measure jobs that are enqueued before the worker starts, from the first start until all are settled."""
    await fill(queue, request.jobs)
    connection = await asyncpg.connect(request.url)
    await connection.execute("ANALYZE")
    starts = StartCounter(request.jobs)
    async with queue.working(starts.record):
        await starts.await_all(request.seconds)
        await await_settled(connection, system.unsettled.format(jobs=request.jobs))
        seconds = time.perf_counter() - starts.first
    await connection.close()
    if starts.jobs != request.jobs:
        raise AssertionError(f"{request.jobs} jobs were enqueued, but {starts.jobs} were started")
    return RunResult(request.jobs / seconds)


async def fill(queue: Queue, jobs: int) -> None:
    """Enqueue jobs in batches, from several callers."""
    starts = iter(range(0, jobs, FILL_JOBS))

    async def call() -> None:
        for start in starts:
            await queue.put_many([payload(number) for number in range(start, min(start + FILL_JOBS, jobs))])

    await asyncio.gather(*(call() for _ in range(FILL_CALLERS)))


async def latency(queue: Queue, request: RunRequest, system: System) -> RunResult:
    """Measure single jobs on an idle queue, from the call that enqueues one until its handler starts."""
    generator, meter = random.Random(7), Meter()
    starts = StartCounter(request.samples + 1)
    async with queue.working(starts.record):
        for number in range(request.samples + 1):
            await asyncio.sleep(IDLE_SECONDS if number < 2 else generator.uniform(*GAP_SECONDS))
            began = time.perf_counter()
            await queue.put(payload(number))
            await starts.await_count(number + 1, START_SECONDS_MAX)
            if number:  # The first one opens connections and prepares statements.
                meter.latencies.append(starts.last - began)
    return RunResult(p50_ms=meter.percentile_ms(50), p99_ms=meter.percentile_ms(99))
