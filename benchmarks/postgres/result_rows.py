"""What was found: rows of runs, the tables they make, and how Ingot does as its history grows."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.postgres.adapter import DriveOptions, RunResult, Scenario
from benchmarks.postgres.plan import ReportPart

GROWING: tuple[Scenario, ...] = ("single", "run")


@dataclass(slots=True)
class Row:
    """One system, driven one way: its measured runs, or why there are none."""

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
        """The row of a system that was measured."""
        return next((row for row in self.rows if row.system == system and row.runs), None)


@dataclass(slots=True)
class HistoryGrowth:
    """Ingot's runs with this many finished jobs already in its database, one in each round."""

    finished_jobs: int
    runs: dict[Scenario, list[RunResult]] = field(default_factory=lambda: {scenario: [] for scenario in GROWING})

    def rate(self, scenario: Scenario) -> float:
        return statistics.median(run.rate for run in self.runs[scenario])

    def slower_than(self, least: HistoryGrowth, scenario: Scenario) -> list[float]:
        """How many times slower than with the least history, round by round: both saw the same minute."""
        pairs = zip(least.runs[scenario], self.runs[scenario], strict=True)
        return [before.rate / after.rate for before, after in pairs]
