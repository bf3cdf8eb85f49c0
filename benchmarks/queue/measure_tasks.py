"""Measure a system whose callers are asyncio tasks; the busy coroutine runs on the same event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.queue.adapter import BATCH_JOBS, RunRequest, RunResult, TaskQueue, TaskSystem, payload
from benchmarks.queue.busy_loop import BusyLoop
from benchmarks.queue.meter import Batches, Meter, Phase, pipeline_figures, single_figures, waves


async def measure(system: TaskSystem, order: RunRequest) -> RunResult:
    burner = BusyLoop(order.busy)
    async with system.open(Path(order.folder), order.level, order.way) as queue, asyncio.TaskGroup() as group:
        group.create_task(burner.run())
        try:
            return await (single if order.scenario == "single" else pipeline)(queue, order, burner)
        finally:
            burner.running = False


async def single(queue: TaskQueue, order: RunRequest, burner: BusyLoop) -> RunResult:
    meter, numbers = Meter(), count()

    async def call() -> None:
        while meter.running:
            began = time.perf_counter()
            await queue.put(payload(next(numbers)))
            meter.saw(began)

    async with asyncio.TaskGroup() as group:
        for _ in range(order.way.callers):
            group.create_task(call())
        await asyncio.sleep(order.warm_seconds)
        meter.counting, slices, began = True, burner.slices, time.perf_counter()
        await asyncio.sleep(order.seconds_max)
        meter.counting, seconds = False, time.perf_counter() - began
        share = burner.share(slices, seconds)
        meter.running = burner.running = False
    figures = single_figures(await queue.readback(), meter, seconds, share)
    while order.drain_after and await queue.take(BATCH_JOBS):
        pass
    return figures


async def pipeline(queue: TaskQueue, order: RunRequest, burner: BusyLoop) -> RunResult:
    enqueued, taken = Phase(order.seconds_max), Phase(order.seconds_max)

    async def take() -> int:
        return await queue.take(order.way.batch_jobs)

    prepared, slices, began = waves(order), burner.slices, time.perf_counter()
    for wave in prepared:
        await run_phase(enqueued, partial(enqueue, queue, wave), order.way.callers)
        await run_phase(taken, take, order.way.callers)
        if enqueued.spent or taken.spent:
            break
    share = burner.share(slices, time.perf_counter() - began)
    return pipeline_figures(await queue.readback(), enqueued, taken, share)


async def enqueue(queue: TaskQueue, wave: Batches) -> int:
    jobs = next(wave, [])
    if jobs:
        await queue.put_many(jobs)
    return len(jobs)


async def run_phase(phase: Phase, step: Callable[[], Awaitable[int]], callers: int) -> None:
    async def call() -> None:
        while not phase.over and (moved := await step()):
            phase.jobs += moved

    phase.begin()
    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(call())
    phase.end()
