"""Measure a system whose callers are threads; the busy event loop runs in one more thread of the same process."""

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
from benchmarks.queue.meter import Batches, Meter, Phase, pipeline_figures, single_figures, waves


def measure(system: ThreadSystem, order: RunRequest) -> RunResult:
    burner = BusyLoop(order.busy)
    queue = system.open(Path(order.folder), order.level, order.way)
    hands = [queue.hand() for _ in range(order.way.callers)]
    beside = threading.Thread(target=burner.run_in_thread)
    beside.start()
    try:
        return (single if order.scenario == "single" else pipeline)(hands, order, burner)
    finally:
        burner.running = False
        beside.join()
        queue.close()


def single(hands: list[ThreadConnection], order: RunRequest, burner: BusyLoop) -> RunResult:
    meter, numbers = Meter(), count()

    def call(hand: ThreadConnection) -> None:
        while meter.running:
            began = time.perf_counter()
            try:
                hand.put(payload(next(numbers)))
            except sqlite3.OperationalError:
                meter.locked_errors += 1
            else:
                meter.saw(began)

    with ThreadPoolExecutor(len(hands)) as pool:
        calls = [pool.submit(call, hand) for hand in hands]
        time.sleep(order.warm_seconds)
        meter.counting, slices, began = True, burner.slices, time.perf_counter()
        time.sleep(order.seconds_max)
        meter.counting, seconds = False, time.perf_counter() - began
        share = burner.share(slices, seconds)
        meter.running = burner.running = False
    for done in calls:
        done.result()
    return single_figures(hands[0].readback(), meter, seconds, share)


def pipeline(hands: list[ThreadConnection], order: RunRequest, burner: BusyLoop) -> RunResult:
    enqueued, taken = Phase(order.seconds_max), Phase(order.seconds_max)

    def take(hand: ThreadConnection) -> int:
        return hand.take(order.way.batch_jobs)

    with ThreadPoolExecutor(len(hands)) as pool:
        prepared, slices, began = waves(order), burner.slices, time.perf_counter()
        for wave in prepared:
            run_phase(enqueued, partial(enqueue, wave), hands, pool)
            run_phase(taken, take, hands, pool)
            if enqueued.spent or taken.spent:
                break
        share = burner.share(slices, time.perf_counter() - began)
    return pipeline_figures(hands[0].readback(), enqueued, taken, share)


def enqueue(wave: Batches, hand: ThreadConnection) -> int:
    jobs = next(wave, [])
    if jobs:
        hand.put_many(jobs)
    return len(jobs)


def run_phase(
    phase: Phase, step: Callable[[ThreadConnection], int], hands: list[ThreadConnection], pool: ThreadPoolExecutor
) -> None:
    adding = threading.Lock()

    def call(hand: ThreadConnection) -> None:
        while not phase.over and (moved := step(hand)):
            with adding:
                phase.jobs += moved

    phase.begin()
    for done in [pool.submit(call, hand) for hand in hands]:
        done.result()
    phase.end()
