"""Results: rows of runs, tables of rows, and runs of Ingot with a growing history."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.queue.adapter import SYNCHRONOUS_FULL, ConnectionReadback, DriveOptions, Level, RunResult, Scenario
from benchmarks.queue.plan import ReportPart


@dataclass(slots=True)
class Row:
    """A system at one durability with one set of options: its trial and its measured runs."""

    system: str
    level: Level
    options: DriveOptions
    trial: RunResult | None = None
    runs: list[RunResult] = field(default_factory=list)
    failure: str = ""

    @property
    def rates(self) -> list[float]:
        return [run.rate for run in self.runs]

    @property
    def rate(self) -> float:
        return self.median(lambda run: run.rate)

    def median(self, of: Callable[[RunResult], float]) -> float:
        return statistics.median(of(run) for run in self.runs) if self.runs else 0.0

    @property
    def readbacks(self) -> list[ConnectionReadback]:
        return [run.readback for run in [*self.runs, *([self.trial] if self.trial else [])]]

    @property
    def is_full(self) -> bool:
        """Whether the writing connection reported FULL in every run."""
        readbacks = self.readbacks
        return bool(readbacks) and all(readback.synchronous == SYNCHRONOUS_FULL for readback in readbacks)


@dataclass(frozen=True, slots=True)
class Table:
    part: ReportPart
    rows: list[Row]


@dataclass(slots=True)
class HistoryGrowth:
    """Runs of Ingot, one per round, on a file with this number of finished jobs."""

    finished_jobs: int
    runs: dict[Scenario, list[RunResult]] = field(default_factory=lambda: {"single": [], "pipeline": []})

    def rate(self, scenario: Scenario) -> float:
        return statistics.median(run.rate for run in self.runs[scenario])

    def slower_than(self, empty: HistoryGrowth, scenario: Scenario) -> list[float]:
        """Return how many times slower the runs were than those on an empty file in the same round."""
        pairs = zip(empty.runs[scenario], self.runs[scenario], strict=True)
        return [empty_run.rate / run.rate for empty_run, run in pairs]


def best_rows(rows: list[Row]) -> list[Row]:
    """Return the fastest row of each system and durability, without a second row if the default is already FULL."""
    best: dict[tuple[str, Level], Row] = {}
    for row in rows:
        key = (row.system, row.level)
        if key not in best or row.rate > best[key].rate:
            best[key] = row
    full = {system for (system, level), row in best.items() if level == "default" and row.is_full}
    return [row for (system, level), row in best.items() if level == "default" or system not in full]
