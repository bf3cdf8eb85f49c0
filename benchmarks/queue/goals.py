"""The goals, compared at equal durability, and whether the results meet them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.queue.campaign import OURS
from benchmarks.queue.plan import SCENARIO_TEXT
from benchmarks.queue.result_rows import HistoryGrowth, Row, Table

GROWTH_MAX: Final = 1.2
RATIO_MIN: Final[dict[str, dict[str, float]]] = {
    "single": {"huey": 3.0, "floor": 0.6},
    "single-busy": {"huey": 3.0, "floor": 0.6},
    "pipeline": {"honker": 1.0, "huey": 5.0},
    "pipeline-busy": {"honker": 1.0, "huey": 5.0},
}


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal and the measured ratio of the medians. `low` and `high` are the ratios of the most different runs.

    `is_certain` states that the ratios of all runs give the same verdict.
    """

    text: str
    ratio: float
    low: float
    high: float
    is_met: bool
    is_certain: bool

    @property
    def line(self) -> str:
        verdict = "met" if self.is_met else "NOT MET"
        doubt = "" if self.is_certain else ", uncertain because the runs differ too much"
        return f"{verdict}{doubt}: {self.text}; measured {self.ratio:.2f} × ({self.low:.2f}–{self.high:.2f})"


def judge(tables: Sequence[Table], growth: Sequence[HistoryGrowth]) -> list[Goal]:
    """Return the goals whose systems were all measured."""
    return [*(goal for table in tables for goal in _table_goals(table)), *_growth_goals(growth)]


def full_row(table: Table, system: str) -> Row | None:
    """Return the row of a system whose connection reported `synchronous` as FULL."""
    return next((row for row in table.rows if row.system == system and row.runs and row.is_full), None)


def _table_goals(table: Table) -> Iterator[Goal]:
    ours = full_row(table, OURS)
    for system, ratio_min in RATIO_MIN.get(table.part.name, {}).items():
        theirs = full_row(table, system)
        if ours is None or theirs is None:
            continue
        ratio, low = ours.rate / theirs.rate, min(ours.rates) / max(theirs.rates)
        high = max(ours.rates) / min(theirs.rates)
        beside = " beside a busy event loop" if table.part.busy else ""
        name = "the floor" if system == "floor" else system
        text = f"{SCENARIO_TEXT[table.part.scenario]}{beside} at least {ratio_min:g} × {name} at FULL"
        is_met = ratio >= ratio_min
        yield Goal(text, ratio, low, high, is_met, is_certain=low >= ratio_min if is_met else high < ratio_min)


def _growth_goals(growth: Sequence[HistoryGrowth]) -> Iterator[Goal]:
    for entry in growth[1:]:
        for scenario, scenario_text in SCENARIO_TEXT.items():
            ratios = entry.slower_than(growth[0], scenario)
            ratio, low, high = statistics.median(ratios), min(ratios), max(ratios)
            text = (
                f"{scenario_text} with {entry.finished_jobs:,} finished jobs at most {GROWTH_MAX:g} × slower than empty"
            )
            is_met = ratio <= GROWTH_MAX
            is_certain = high <= GROWTH_MAX if is_met else low > GROWTH_MAX
            yield Goal(text, ratio, low, high, is_met, is_certain)
