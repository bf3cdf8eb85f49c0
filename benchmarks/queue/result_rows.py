"""What was found: rows of runs, the tables they make, and how Ingot does as its file grows."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.queue.adapter import SYNCHRONOUS_FULL, ConnectionReadback, DriveOptions, Level, RunResult, Scenario
from benchmarks.queue.plan import ReportPart


@dataclass(slots=True)
class Row:
    """One system at one durability, driven one way: what its trial said and its measured runs."""

    system: str
    level: Level
    way: DriveOptions
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
        return [figures.readback for figures in [*self.runs, *([self.trial] if self.trial else [])]]

    @property
    def is_full(self) -> bool:
        """Whether the connection that wrote said so every time."""
        said = self.readbacks
        return bool(said) and all(readback.synchronous == SYNCHRONOUS_FULL for readback in said)


@dataclass(frozen=True, slots=True)
class Table:
    part: ReportPart
    rows: list[Row]


@dataclass(slots=True)
class HistoryGrowth:
    """Ingot's runs with this many finished jobs already in its file, one in each round."""

    finished_jobs: int
    runs: dict[Scenario, list[RunResult]] = field(default_factory=lambda: {"single": [], "pipeline": []})

    def rate(self, scenario: Scenario) -> float:
        return statistics.median(run.rate for run in self.runs[scenario])

    def slower_than(self, empty: HistoryGrowth, scenario: Scenario) -> list[float]:
        """How many times slower than the empty file, round by round: both saw the same minute of the machine."""
        pairs = zip(empty.runs[scenario], self.runs[scenario], strict=True)
        return [before.rate / after.rate for before, after in pairs]


def best_rows(rows: list[Row]) -> list[Row]:
    """For each system and durability its fastest way; FULL only once for a system whose default it is."""
    best: dict[tuple[str, Level], Row] = {}
    for row in rows:
        key = (row.system, row.level)
        if key not in best or row.rate > best[key].rate:
            best[key] = row
    full = {system for (system, level), row in best.items() if level == "default" and row.is_full}
    return [row for (system, level), row in best.items() if level == "default" or system not in full]
