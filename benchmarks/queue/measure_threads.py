"""Measures a system whose callers are threads. The busy event loop runs in another thread of the same process."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.queue.adapter import RunRequest, RunResult, ThreadConnection, ThreadSystem, payload
from benchmarks.queue.busy_loop import BusyLoop
from benchmarks.queue.meter import Batches, Meter, Phase, pipeline_result, prepare_waves, single_result


def measure(system: ThreadSystem, request: RunRequest) -> RunResult:
    busy_loop = BusyLoop(request.busy)
    queue = system.open(Path(request.folder), request.level, request.options)
    connections = [queue.connect() for _ in range(request.options.callers)]
    busy_thread = threading.Thread(target=busy_loop.run_in_thread)
    busy_thread.start()
    try:
        return (single if request.scenario == "single" else pipeline)(connections, request, busy_loop)
    finally:
        busy_loop.running = False
        busy_thread.join()
        queue.close()


def single(connections: list[ThreadConnection], request: RunRequest, busy_loop: BusyLoop) -> RunResult:
    meter, numbers = Meter(), count()

    def call(connection: ThreadConnection) -> None:
        while meter.running:
            began = time.perf_counter()
            try:
                connection.put(payload(next(numbers)))
            except sqlite3.OperationalError:
                meter.locked_errors += 1
            else:
                meter.record(began)

    with ThreadPoolExecutor(len(connections)) as pool:
        calls = [pool.submit(call, connection) for connection in connections]
        time.sleep(request.warm_seconds)
        meter.counting, slices, began = True, busy_loop.slices, time.perf_counter()
        time.sleep(request.seconds_max)
        meter.counting, seconds = False, time.perf_counter() - began
        share = busy_loop.share(slices, seconds)
        meter.running = busy_loop.running = False
    for finished_call in calls:
        finished_call.result()
    return single_result(connections[0].readback(), meter, seconds, share)


def pipeline(connections: list[ThreadConnection], request: RunRequest, busy_loop: BusyLoop) -> RunResult:
    enqueued, taken = Phase(request.seconds_max), Phase(request.seconds_max)

    def take(connection: ThreadConnection) -> int:
        return connection.take(request.options.batch_jobs)

    with ThreadPoolExecutor(len(connections)) as pool:
        prepared, slices, began = prepare_waves(request), busy_loop.slices, time.perf_counter()
        for wave in prepared:
            run_phase(enqueued, partial(enqueue, wave), connections, pool)
            run_phase(taken, take, connections, pool)
            if enqueued.spent or taken.spent:
                break
        share = busy_loop.share(slices, time.perf_counter() - began)
    return pipeline_result(connections[0].readback(), enqueued, taken, share)


def enqueue(wave: Batches, connection: ThreadConnection) -> int:
    jobs = next(wave, [])
    if jobs:
        connection.put_many(jobs)
    return len(jobs)


def run_phase(
    phase: Phase, step: Callable[[ThreadConnection], int], connections: list[ThreadConnection], pool: ThreadPoolExecutor
) -> None:
    lock = threading.Lock()

    def call(connection: ThreadConnection) -> None:
        while not phase.over and (moved := step(connection)):
            with lock:
                phase.jobs += moved

    phase.begin()
    for started_call in [pool.submit(call, connection) for connection in connections]:
        started_call.result()
    phase.end()
