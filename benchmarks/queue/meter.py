"""Counters of calls: in a time window after the warm-up, or in the phases of a pipeline."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.queue.adapter import ConnectionReadback, Payload, RunRequest, RunResult, payload


@dataclass(slots=True)
class Meter:
    """Latencies of the calls that end while `counting` is true. Callers stop when `running` is false."""

    running: bool = True
    counting: bool = False
    latencies: list[float] = field(default_factory=list)
    locked_errors: int = 0

    def record(self, began: float) -> None:
        if self.counting:
            self.latencies.append(time.perf_counter() - began)

    def percentile_ms(self, percent: int) -> float:
        if len(self.latencies) < 2:
            return 0.0
        return statistics.quantiles(self.latencies, n=100, method="inclusive")[percent - 1] * 1000


@dataclass(slots=True)
class Phase:
    """Enqueueing or taking, over all waves: the number of jobs and the time."""

    seconds_max: float
    jobs: int = 0
    seconds: float = 0.0
    _began: float = 0.0

    def begin(self) -> None:
        self._began = time.perf_counter()

    def end(self) -> None:
        self.seconds += time.perf_counter() - self._began

    @property
    def over(self) -> bool:
        """Whether the time is used up, checked by callers during a wave."""
        return self.seconds + time.perf_counter() - self._began >= self.seconds_max

    @property
    def spent(self) -> bool:
        """Whether the time is used up, checked between waves."""
        return self.seconds >= self.seconds_max

    @property
    def rate(self) -> float:
        return self.jobs / self.seconds


Batches = Iterator[list[Payload]]


def prepare_waves(request: RunRequest) -> list[Batches]:
    """Return all jobs in waves of batches. They are created before the time is measured."""
    wave_jobs, batch_jobs = request.wave_jobs or request.jobs_max, request.options.batch_jobs
    waves = []
    for wave in range(0, request.jobs_max, wave_jobs):
        starts = range(wave, wave + wave_jobs, batch_jobs)
        waves.append(iter([[payload(start + step) for step in range(batch_jobs)] for start in starts]))
    return waves


def single_result(readback: ConnectionReadback, meter: Meter, seconds: float, busy_share: float) -> RunResult:
    return RunResult(
        readback=readback,
        enqueue_rate=len(meter.latencies) / seconds,
        take_rate=0.0,
        p50_ms=meter.percentile_ms(50),
        p99_ms=meter.percentile_ms(99),
        busy_share=busy_share,
        locked_errors=meter.locked_errors,
    )


def pipeline_result(readback: ConnectionReadback, enqueued: Phase, taken: Phase, busy_share: float) -> RunResult:
    """Return the result. Raises `AssertionError` if an empty queue has lost or repeated jobs."""
    if taken.jobs != enqueued.jobs and not taken.spent:
        raise AssertionError(f"{enqueued.jobs} jobs were enqueued, but {taken.jobs} were claimed and settled")
    return RunResult(
        readback=readback,
        enqueue_rate=enqueued.rate,
        take_rate=taken.rate,
        p50_ms=0.0,
        p99_ms=0.0,
        busy_share=busy_share,
        locked_errors=0,
    )
