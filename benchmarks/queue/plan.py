"""What a run covers, and how long each part may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.queue.adapter import Scenario

WAVE_JOBS: Final = 1000  # Some peers claim more slowly the more is waiting; a shallow queue shows them at their best.

WHAT: Final[dict[Scenario, str]] = {"single": "single durable enqueues", "pipeline": "end to end"}


@dataclass(frozen=True, slots=True)
class RunSizes:
    """Lengths of runs. The pipeline ends with its jobs, or when either half of it has taken `seconds_max`."""

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
    """One table of the report. `wave_jobs` is how many jobs wait at most; 0 lets all of them wait."""

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
    ReportPart("pipeline-deep", "pipeline", False, "End to end with a deep backlog: all jobs wait first", wave_jobs=0),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts and systems asked for."""

    parts: tuple[ReportPart, ...]
    systems: tuple[str, ...]
    history: tuple[int, ...]
    sizes: RunSizes
