"""The parts of a benchmark, and the sizes of their runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.postgres.adapter import Scenario

SCENARIO_TEXT: Final[dict[Scenario, str]] = {
    "single": "single durable enqueues",
    "bulk": "bulk enqueues",
    "run": "run to completion",
    "latency": "enqueue to start",
    "held": "with a transaction held open",
}
HELD_WARM_SECONDS: Final = 10.0
RUN_SECONDS_MAX: Final = 60.0


@dataclass(frozen=True, slots=True)
class RunSizes:
    """The sizes of runs. `jobs_share` is a share of the jobs that a system runs to completion."""

    rounds: int
    warm_seconds: float
    seconds: float
    jobs_share: float
    samples: int
    window_seconds: float
    trials: bool


FULL = RunSizes(rounds=3, warm_seconds=0.5, seconds=2.0, jobs_share=1.0, samples=200, window_seconds=10.0, trials=True)
QUICK = RunSizes(rounds=1, warm_seconds=0.2, seconds=0.5, jobs_share=0.1, samples=20, window_seconds=2.0, trials=False)
TRIAL = RunSizes(rounds=1, warm_seconds=0.2, seconds=0.8, jobs_share=0.3, samples=50, window_seconds=2.0, trials=False)


@dataclass(frozen=True, slots=True)
class ReportPart:
    """A table of the report."""

    scenario: Scenario
    title: str

    @property
    def name(self) -> str:
        return self.scenario


PARTS = (
    ReportPart("single", "Single durable enqueues, 32 concurrent callers"),
    ReportPart("bulk", "Bulk enqueues"),
    ReportPart("run", "Run to completion: jobs enqueued before, one worker process"),
    ReportPart("latency", "Enqueue to start on an idle queue"),
)
HELD = ReportPart("held", "One transaction held open while jobs are enqueued and run")


@dataclass(frozen=True, slots=True)
class Plan:
    """The selected parts and systems."""

    parts: tuple[ReportPart, ...]
    systems: tuple[str, ...]
    history: tuple[int, ...]
    held_seconds: float
    sizes: RunSizes
