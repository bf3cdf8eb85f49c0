"""Results: rows of runs, tables of rows, and runs of Ingot with a growing history."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.postgres.adapter import DriveOptions, RunResult, Scenario
from benchmarks.postgres.plan import ReportPart

GROWING: tuple[Scenario, ...] = ("single", "run")


@dataclass(slots=True)
class Row:
    """A system with one set of options: its measured runs, or the reason why it has none."""

    system: str
    version: str
    options: DriveOptions
    runs: list[RunResult] = field(default_factory=list)
    failure: str = ""

    def median(self, of: Callable[[RunResult], float]) -> float:
        return statistics.median(of(run) for run in self.runs) if self.runs else 0.0

    @property
    def rates(self) -> list[float]:
        return [run.rate for run in self.runs]

    @property
    def rate(self) -> float:
        return self.median(lambda run: run.rate)

    @property
    def losses(self) -> list[float]:
        """The share of its rate that each run lost while a transaction was held open."""
        return [1 - run.rate / run.before_rate for run in self.runs if run.before_rate]


@dataclass(frozen=True, slots=True)
class Table:
    part: ReportPart
    rows: list[Row]

    def row(self, system: str) -> Row | None:
        """Return the row of a system, if it was measured."""
        return next((row for row in self.rows if row.system == system and row.runs), None)


@dataclass(slots=True)
class HistoryGrowth:
    """Runs of Ingot, one per round, on a database with this number of finished jobs."""

    finished_jobs: int
    runs: dict[Scenario, list[RunResult]] = field(default_factory=lambda: {scenario: [] for scenario in GROWING})

    def rate(self, scenario: Scenario) -> float:
        return statistics.median(run.rate for run in self.runs[scenario])

    def slower_than(self, least: HistoryGrowth, scenario: Scenario) -> list[float]:
        """Return how many times slower the runs were than those with the least history in the same round."""
        pairs = zip(least.runs[scenario], self.runs[scenario], strict=True)
        return [least_run.rate / run.rate for least_run, run in pairs]
