"""The process of one measured run: reads an order, prints its figures as JSON."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import msgspec

from benchmarks.queue import measure_tasks, measure_threads
from benchmarks.queue.adapter import RunRequest, RunResult, TaskSystem
from benchmarks.queue.systems import load


def run(order: RunRequest) -> RunResult:
    system = load(order.system)
    sys.setswitchinterval(order.way.switch_seconds)
    if isinstance(system, TaskSystem):
        return asyncio.run(measure_tasks.measure(system, order))
    return measure_threads.measure(system, order)


def die(died: threading.ExceptHookArgs) -> None:
    """A thread that dies would leave callers waiting for ever: end the run instead."""
    print(f"a thread died: {died.exc_value!r}", file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    threading.excepthook = die
    print(msgspec.json.encode(run(msgspec.json.decode(sys.argv[1], type=RunRequest))).decode())
