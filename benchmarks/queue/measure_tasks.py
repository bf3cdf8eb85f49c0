"""Measures a system whose callers are asyncio tasks. The busy coroutine runs on the same event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.queue.adapter import BATCH_JOBS, RunRequest, RunResult, TaskQueue, TaskSystem, payload
from benchmarks.queue.busy_loop import BusyLoop
from benchmarks.queue.meter import Batches, Meter, Phase, pipeline_result, prepare_waves, single_result


async def measure(system: TaskSystem, request: RunRequest) -> RunResult:
    busy_loop = BusyLoop(request.busy)
    async with system.open(Path(request.folder), request.level, request.options) as queue, asyncio.TaskGroup() as group:
        group.create_task(busy_loop.run())
        try:
            return await (single if request.scenario == "single" else pipeline)(queue, request, busy_loop)
        finally:
            busy_loop.running = False


async def single(queue: TaskQueue, request: RunRequest, busy_loop: BusyLoop) -> RunResult:
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
        meter.counting, slices, began = True, busy_loop.slices, time.perf_counter()
        await asyncio.sleep(request.seconds_max)
        meter.counting, seconds = False, time.perf_counter() - began
        share = busy_loop.share(slices, seconds)
        meter.running = busy_loop.running = False
    result = single_result(await queue.readback(), meter, seconds, share)
    while request.drain_after and await queue.take(BATCH_JOBS):
        pass
    return result


async def pipeline(queue: TaskQueue, request: RunRequest, busy_loop: BusyLoop) -> RunResult:
    enqueued, taken = Phase(request.seconds_max), Phase(request.seconds_max)

    async def take() -> int:
        return await queue.take(request.options.batch_jobs)

    prepared, slices, began = prepare_waves(request), busy_loop.slices, time.perf_counter()
    for wave in prepared:
        await run_phase(enqueued, partial(enqueue, queue, wave), request.options.callers)
        await run_phase(taken, take, request.options.callers)
        if enqueued.spent or taken.spent:
            break
    share = busy_loop.share(slices, time.perf_counter() - began)
    return pipeline_result(await queue.readback(), enqueued, taken, share)


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
