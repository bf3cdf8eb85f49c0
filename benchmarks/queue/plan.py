"""The parts of a benchmark, and the sizes of their runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.queue.adapter import Scenario

WAVE_JOBS: Final = 1000  # Some peers claim more slowly from a long queue, so most parts use a short one.

SCENARIO_TEXT: Final[dict[Scenario, str]] = {"single": "single durable enqueues", "pipeline": "end to end"}


@dataclass(frozen=True, slots=True)
class RunSizes:
    """The sizes of runs. A pipeline ends after its last job, or when one of its phases has taken `seconds_max`."""

    rounds: int
    warm_seconds: float
    seconds_max: float
    jobs_max: int
    trial_seconds: float
    trial_jobs: int


FULL = RunSizes(rounds=3, warm_seconds=0.3, seconds_max=2.0, jobs_max=20_000, trial_seconds=0.6, trial_jobs=6_000)
QUICK = RunSizes(rounds=1, warm_seconds=0.1, seconds_max=0.4, jobs_max=3_000, trial_seconds=0.0, trial_jobs=0)


@dataclass(frozen=True, slots=True)
class ReportPart:
    """A table of the report. At most `wave_jobs` jobs wait at a time; with 0, all of them."""

    name: str
    scenario: Scenario
    busy: bool
    title: str
    wave_jobs: int = WAVE_JOBS


PARTS = (
    ReportPart("single", "single", False, "Single durable enqueues, 32 concurrent callers"),
    ReportPart("pipeline", "pipeline", False, f"End to end: enqueue, claim and settle in waves of {WAVE_JOBS:,} jobs"),
    ReportPart("single-busy", "single", True, "Single durable enqueues beside a busy event loop"),
    ReportPart("pipeline-busy", "pipeline", True, "End to end beside a busy event loop"),
    ReportPart(
        "pipeline-deep", "pipeline", False, "End to end with a long queue: all jobs are enqueued first", wave_jobs=0
    ),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The selected parts and systems."""

    parts: tuple[ReportPart, ...]
    systems: tuple[str, ...]
    history: tuple[int, ...]
    sizes: RunSizes
