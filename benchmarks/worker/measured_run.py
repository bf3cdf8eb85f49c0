"""The process of one measured run: submits, has a worker run, waits for the end; prints its figures as JSON."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.queue.adapter import component
from benchmarks.queue.folders import REPOSITORY
from benchmarks.worker.adapter import RunRequest, RunResult, Submitter, System
from benchmarks.worker.start_times import JOBS_MAX, VARIABLE, StartTimes
from benchmarks.worker.systems import load

FILL_JOBS: Final = 500
FILL_CALLERS: Final = 4
POLL_SECONDS: Final = 0.005
IDLE_SECONDS: Final = 1.5  # A worker that was busy a moment ago is not idle yet.
GAP_SECONDS: Final = 0.03
WAIT_SECONDS_MAX: Final = 60.0
END_SECONDS_MAX: Final = 15.0
WARM_SAMPLES: Final = 10
NANOS: Final = 1e9


async def measure(system: System, order: RunRequest) -> RunResult:
    """Jobs that wait already, then jobs that come while the worker runs, then one at a time."""
    notes = StartTimes(Path(order.notes))
    async with system.submitting(order.place) as submitter:
        await fill(submitter, order.jobs)
        began = time.monotonic_ns()
        with working(system, order) as worker:
            await ended(submitter, notes, order.jobs, worker)
            end, first = time.monotonic_ns(), notes.first(0, order.jobs)
            steady, upto = await keep_submitting(submitter, notes, system, order, worker)
            latencies = await one_at_a_time(submitter, notes, upto, order.samples, worker) if order.samples else []
    return RunResult(
        rate=order.jobs / ((end - first) / NANOS),
        start_seconds=(first - began) / NANOS,
        steady_rate=steady,
        latencies_ms=latencies,
    )


@contextmanager
def working(system: System, order: RunRequest) -> Iterator[subprocess.Popen[bytes]]:
    """The worker's process, told to go in the end."""
    place = msgspec.json.encode(order.place).decode()
    command = [sys.executable, "-m", "benchmarks.worker.worker_process", order.system, place]
    more: Mapping[str, str] = {}
    if system.command is not None:
        command, more = system.command(order.place)
    log = Path(order.notes).with_suffix(".log")
    with log.open("wb") as output:
        worker = subprocess.Popen(
            command, cwd=REPOSITORY, env={**os.environ, **more, VARIABLE: order.notes}, stdout=output, stderr=output
        )
    try:
        yield worker
    finally:
        worker.terminate()
        try:
            worker.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


async def fill(submitter: Submitter, jobs: int) -> None:
    """Enqueue jobs in batches, from a few callers."""
    starts = iter(range(0, jobs, FILL_JOBS))

    async def call() -> None:
        for start in starts:
            await submitter.put_many(range(start, min(start + FILL_JOBS, jobs)))

    await asyncio.gather(*(call() for _ in range(FILL_CALLERS)))


async def started(notes: StartTimes, upto: int, worker: subprocess.Popen[bytes]) -> None:
    """Wait for all jobs below a number. Raises when the worker ended, or is too slow."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not notes.all_started(upto):
        if worker.poll() is not None:
            raise AssertionError(f"the worker ended with {worker.returncode}")
        if time.monotonic() > deadline:
            raise AssertionError(f"{upto} jobs were enqueued, but after a minute {notes.started} were started")
        await asyncio.sleep(POLL_SECONDS)


async def ended(submitter: Submitter, notes: StartTimes, upto: int, worker: subprocess.Popen[bytes]) -> None:
    """Wait until all jobs below a number have started, and the system knows that they ended."""
    await started(notes, upto, worker)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while await submitter.unsettled():
        if time.monotonic() > deadline:
            raise AssertionError("jobs have started and do not end")
        await asyncio.sleep(POLL_SECONDS)


async def keep_submitting(
    submitter: Submitter, notes: StartTimes, system: System, order: RunRequest, worker: subprocess.Popen[bytes]
) -> tuple[float, int]:
    """Enqueue while the worker runs, never far ahead of it, until the last has ended; the rate, and the next number."""
    number, began = order.jobs, time.monotonic()
    room = JOBS_MAX - order.samples - 2 * WARM_SAMPLES - system.callers * system.batch_jobs

    async def call() -> None:
        nonlocal number
        while time.monotonic() - began < order.steady_seconds and number < room:
            if number - notes.started > order.backlog_jobs and not notes.all_started(number - order.backlog_jobs):
                await asyncio.sleep(POLL_SECONDS)
                continue
            numbers, number = range(number, number + system.batch_jobs), number + system.batch_jobs
            await (submitter.put(numbers[0]) if len(numbers) == 1 else submitter.put_many(numbers))

    await asyncio.gather(*(call() for _ in range(system.callers)))
    await ended(submitter, notes, number, worker)
    return (number - order.jobs) / (time.monotonic() - began), number


async def one_at_a_time(
    submitter: Submitter, notes: StartTimes, number: int, samples: int, worker: subprocess.Popen[bytes]
) -> list[float]:
    """Milliseconds from the call that enqueues a job until its handler starts, on an idle system."""
    found = []
    await asyncio.sleep(IDLE_SECONDS)
    for step in range(WARM_SAMPLES + samples):
        began = time.monotonic_ns()
        await submitter.put(number + step)
        await started(notes, number + step + 1, worker)
        found.append((notes.at(number + step) - began) / 1e6)
        await asyncio.sleep(GAP_SECONDS)
    return found[WARM_SAMPLES:]


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    uvloop: Any = component("uvloop")
    wanted = msgspec.json.decode(sys.argv[1], type=RunRequest)
    print(msgspec.json.encode(uvloop.run(measure(load(wanted.system), wanted))).decode())
