"""The process of one measured run. The argument is its request; it prints the result as JSON."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import msgspec

from benchmarks.queue import measure_tasks, measure_threads
from benchmarks.queue.adapter import RunRequest, RunResult, TaskSystem
from benchmarks.queue.systems import load


def run(request: RunRequest) -> RunResult:
    system = load(request.system)
    sys.setswitchinterval(request.options.switch_seconds)
    if isinstance(system, TaskSystem):
        return asyncio.run(measure_tasks.measure(system, request))
    return measure_threads.measure(system, request)


def exit_on_thread_error(failure: threading.ExceptHookArgs) -> None:
    """End the run. Otherwise callers would wait forever for a thread that has failed."""
    print(f"a thread failed: {failure.exc_value!r}", file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    threading.excepthook = exit_on_thread_error
    print(msgspec.json.encode(run(msgspec.json.decode(sys.argv[1], type=RunRequest))).decode())
