"""The goals, each compared at equal durability, met or not, with the range that the single runs span."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.queue.campaign import OURS
from benchmarks.queue.plan import WHAT
from benchmarks.queue.result_rows import HistoryGrowth, Row, Table

GROWTH_MAX: Final = 1.2
LEAST: Final[dict[str, dict[str, float]]] = {
    "single": {"huey": 3.0, "floor": 0.6},
    "single-busy": {"huey": 3.0, "floor": 0.6},
    "pipeline": {"honker": 1.0, "huey": 5.0},
    "pipeline-busy": {"honker": 1.0, "huey": 5.0},
}


@dataclass(frozen=True, slots=True)
class Goal:
    """What was wanted and the ratio found; `low` and `high` compare the runs at their most unlike."""

    text: str
    found: float
    low: float
    high: float
    met: bool
    always: bool

    @property
    def line(self) -> str:
        verdict = "met" if self.met else "NOT MET"
        doubt = "" if self.always else ", not sure: the runs differ too much"
        return f"{verdict}{doubt}: {self.text}; found {self.found:.2f} × ({self.low:.2f}–{self.high:.2f})"


def judge(tables: Sequence[Table], growth: Sequence[HistoryGrowth]) -> list[Goal]:
    """Goals whose systems were all measured."""
    return [*(goal for table in tables for goal in _of_table(table)), *_of_growth(growth)]


def full_row(table: Table, system: str) -> Row | None:
    """The row of a system whose own connection said `synchronous` is FULL."""
    return next((row for row in table.rows if row.system == system and row.runs and row.is_full), None)


def _of_table(table: Table) -> Iterator[Goal]:
    ours = full_row(table, OURS)
    for system, least in LEAST.get(table.part.name, {}).items():
        theirs = full_row(table, system)
        if ours is None or theirs is None:
            continue
        found, low = ours.rate / theirs.rate, min(ours.rates) / max(theirs.rates)
        high = max(ours.rates) / min(theirs.rates)
        beside = " beside a busy event loop" if table.part.busy else ""
        name = "the floor" if system == "floor" else system
        text = f"{WHAT[table.part.scenario]}{beside} at least {least:g} × {name} at FULL"
        met = found >= least
        yield Goal(text, found, low, high, met, always=low >= least if met else high < least)


def _of_growth(growth: Sequence[HistoryGrowth]) -> Iterator[Goal]:
    for grown in growth[1:]:
        for scenario, what in WHAT.items():
            ratios = grown.slower_than(growth[0], scenario)
            found, low, high = statistics.median(ratios), min(ratios), max(ratios)
            text = f"{what} with {grown.finished_jobs:,} finished jobs at most {GROWTH_MAX:g} × slower than empty"
            met = found <= GROWTH_MAX
            yield Goal(text, found, low, high, met, always=high <= GROWTH_MAX if met else low > GROWTH_MAX)
