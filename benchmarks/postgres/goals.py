"""The goals, and whether the results meet them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.postgres.plan import SCENARIO_TEXT
from benchmarks.postgres.result_rows import GROWING, HistoryGrowth, Row, Table
from benchmarks.queue.goals import GROWTH_MAX, Goal

OURS: Final = "ingot"
RATIO_MIN: Final[dict[str, dict[str, float]]] = {
    "single": {"pgqueuer": 3.0},
    "run": {"graphile": 1.3, "pgqueuer": 2.5, "floor": 0.6},
}
P50_MS_MAX: Final = 2.5
P99_MS_MAX: Final = 5.0
LOSS_MAX: Final = 0.1
PEER_NAMES: Final = {"floor": "the floor", "graphile": "graphile-worker"}


class UnitGoal(Goal):
    """A goal for a number with a unit, instead of a ratio."""

    @property
    def line(self) -> str:
        return super().line.replace(" ×", "")


def judge(tables: Sequence[Table], growth: Sequence[HistoryGrowth]) -> list[Goal]:
    """Return the goals whose systems were all measured."""
    return [*(goal for table in tables for goal in _table_goals(table)), *_growth_goals(growth)]


def _table_goals(table: Table) -> Iterator[Goal]:
    ours = table.row(OURS)
    if ours is None:
        return
    for system, ratio_min in RATIO_MIN.get(table.part.name, {}).items():
        if theirs := table.row(system):
            yield _at_least(
                f"{SCENARIO_TEXT[table.part.scenario]} at least {ratio_min:g} × {PEER_NAMES.get(system, system)}",
                ours,
                theirs,
                ratio_min,
            )
    if table.part.name == "latency":
        yield _at_most(
            f"{SCENARIO_TEXT['latency']}, p50 at most {P50_MS_MAX:g} ms", [run.p50_ms for run in ours.runs], P50_MS_MAX
        )
        yield _at_most(
            f"{SCENARIO_TEXT['latency']}, p99 at most {P99_MS_MAX:g} ms", [run.p99_ms for run in ours.runs], P99_MS_MAX
        )
    if table.part.name == "held" and ours.losses:
        text = f"share of the rate that is lost {SCENARIO_TEXT['held']} at most {LOSS_MAX:g}"
        yield _at_most(text, ours.losses, LOSS_MAX)


def _at_least(text: str, ours: Row, theirs: Row, ratio_min: float) -> Goal:
    ratio, low = ours.rate / theirs.rate, min(ours.rates) / max(theirs.rates)
    high = max(ours.rates) / min(theirs.rates)
    is_met = ratio >= ratio_min
    return Goal(text, ratio, low, high, is_met, is_certain=low >= ratio_min if is_met else high < ratio_min)


def _at_most(text: str, values: Sequence[float], maximum: float, goal_class: type[Goal] = UnitGoal) -> Goal:
    median, low, high = statistics.median(values), min(values), max(values)
    is_met = median <= maximum
    return goal_class(text, median, low, high, is_met, is_certain=high <= maximum if is_met else low > maximum)


def _growth_goals(growth: Sequence[HistoryGrowth]) -> Iterator[Goal]:
    for entry in growth[1:]:
        for scenario in GROWING:
            few, many = f"{growth[0].finished_jobs:,}", f"{entry.finished_jobs:,}"
            text = (
                f"{SCENARIO_TEXT[scenario]} with {many} finished jobs at most {GROWTH_MAX:g} × slower than with {few}"
            )
            yield _at_most(text, entry.slower_than(growth[0], scenario), GROWTH_MAX, Goal)
