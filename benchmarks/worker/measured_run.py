"""The process of one measured run: submits jobs, starts a worker, waits for it, and prints the result as JSON."""

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
IDLE_SECONDS: Final = 1.5  # After this time, a worker that was busy is idle.
GAP_SECONDS: Final = 0.03
WAIT_SECONDS_MAX: Final = 60.0
END_SECONDS_MAX: Final = 15.0
WARM_SAMPLES: Final = 10
NANOS: Final = 1e9


async def measure(system: System, request: RunRequest) -> RunResult:
    """Measure jobs that wait when the worker starts, then jobs that are enqueued meanwhile, then single jobs."""
    start_times = StartTimes(Path(request.start_times))
    async with system.submitting(request.address) as submitter:
        await fill(submitter, request.jobs)
        worker_started = time.monotonic_ns()
        with working(system, request) as worker:
            await await_ended(submitter, start_times, request.jobs, worker)
            ended, first_started = time.monotonic_ns(), start_times.first(0, request.jobs)
            steady_rate, number = await keep_submitting(submitter, start_times, system, request, worker)
            latencies: list[float] = []
            if request.samples:
                latencies = await sample_latencies(submitter, start_times, number, request.samples, worker)
    return RunResult(
        rate=request.jobs / ((ended - first_started) / NANOS),
        start_seconds=(first_started - worker_started) / NANOS,
        steady_rate=steady_rate,
        latencies_ms=latencies,
    )


@contextmanager
def working(system: System, request: RunRequest) -> Iterator[subprocess.Popen[bytes]]:
    """Run the process of the worker until the end of the block."""
    address = msgspec.json.encode(request.address).decode()
    command = [sys.executable, "-m", "benchmarks.worker.worker_process", request.system, address]
    variables: Mapping[str, str] = {}
    if system.command is not None:
        command, variables = system.command(request.address)
    environment = {**os.environ, **variables, VARIABLE: request.start_times}
    log = Path(request.start_times).with_suffix(".log")
    with log.open("wb") as output:
        worker = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=output, stderr=output)
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
    """Enqueue jobs in batches, from several callers."""
    starts = iter(range(0, jobs, FILL_JOBS))

    async def call() -> None:
        for start in starts:
            await submitter.put_many(range(start, min(start + FILL_JOBS, jobs)))

    await asyncio.gather(*(call() for _ in range(FILL_CALLERS)))


async def await_started(start_times: StartTimes, number: int, worker: subprocess.Popen[bytes]) -> None:
    """Wait until all jobs below a number have started. Raises `AssertionError` if the worker ends or is too slow."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not start_times.all_started(number):
        if worker.poll() is not None:
            raise AssertionError(f"the worker ended with exit code {worker.returncode}")
        if time.monotonic() > deadline:
            raise AssertionError(
                f"only {start_times.started} of {number} jobs started within {WAIT_SECONDS_MAX:g} seconds"
            )
        await asyncio.sleep(POLL_SECONDS)


async def await_ended(
    submitter: Submitter, start_times: StartTimes, number: int, worker: subprocess.Popen[bytes]
) -> None:
    """Wait until all jobs below a number have started, and the system has recorded that they ended."""
    await await_started(start_times, number, worker)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while await submitter.unsettled():
        if time.monotonic() > deadline:
            raise AssertionError(f"some jobs did not end within {WAIT_SECONDS_MAX:g} seconds")
        await asyncio.sleep(POLL_SECONDS)


async def keep_submitting(
    submitter: Submitter, start_times: StartTimes, system: System, request: RunRequest, worker: subprocess.Popen[bytes]
) -> tuple[float, int]:
    """Enqueue jobs while the worker runs, with a bounded backlog, and wait until the last one has ended.

    Return the rate, and the number of the next job.
    """
    number, began = request.jobs, time.monotonic()
    number_max = JOBS_MAX - request.samples - 2 * WARM_SAMPLES - system.callers * system.batch_jobs

    async def call() -> None:
        nonlocal number
        while time.monotonic() - began < request.steady_seconds and number < number_max:
            if number - start_times.started > request.backlog_jobs and not start_times.all_started(
                number - request.backlog_jobs
            ):
                await asyncio.sleep(POLL_SECONDS)
                continue
            numbers, number = range(number, number + system.batch_jobs), number + system.batch_jobs
            await (submitter.put(numbers[0]) if len(numbers) == 1 else submitter.put_many(numbers))

    await asyncio.gather(*(call() for _ in range(system.callers)))
    await await_ended(submitter, start_times, number, worker)
    return (number - request.jobs) / (time.monotonic() - began), number


async def sample_latencies(
    submitter: Submitter, start_times: StartTimes, number: int, samples: int, worker: subprocess.Popen[bytes]
) -> list[float]:
    """Return the milliseconds from the call that enqueues a job until its handler starts, on an idle system."""
    latencies = []
    await asyncio.sleep(IDLE_SECONDS)
    for step in range(WARM_SAMPLES + samples):
        began = time.monotonic_ns()
        await submitter.put(number + step)
        await await_started(start_times, number + step + 1, worker)
        latencies.append((start_times.at(number + step) - began) / 1e6)
        await asyncio.sleep(GAP_SECONDS)
    return latencies[WARM_SAMPLES:]


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    uvloop: Any = component("uvloop")
    requested = msgspec.json.decode(sys.argv[1], type=RunRequest)
    print(msgspec.json.encode(uvloop.run(measure(load(requested.system), requested))).decode())
