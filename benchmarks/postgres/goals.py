"""The goals, met or not, with the range that the single runs span."""

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
SAID: Final = {"floor": "the floor", "graphile": "graphile-worker"}


class UnitGoal(Goal):
    """A goal with a unit of its own."""

    @property
    def line(self) -> str:
        return super().line.replace(" ×", "")


def judge(tables: Sequence[Table], growth: Sequence[HistoryGrowth]) -> list[Goal]:
    """Goals whose systems were all measured."""
    return [*(goal for table in tables for goal in _of_table(table)), *_of_growth(growth)]


def _of_table(table: Table) -> Iterator[Goal]:
    ours = table.row(OURS)
    if ours is None:
        return
    for system, least in RATIO_MIN.get(table.part.name, {}).items():
        if theirs := table.row(system):
            yield _at_least(
                f"{SCENARIO_TEXT[table.part.scenario]} at least {least:g} × {SAID.get(system, system)}",
                ours,
                theirs,
                least,
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


def _at_least(text: str, ours: Row, theirs: Row, least: float) -> Goal:
    found, low = ours.rate / theirs.rate, min(ours.rates) / max(theirs.rates)
    high = max(ours.rates) / min(theirs.rates)
    met = found >= least
    return Goal(text, found, low, high, met, always=low >= least if met else high < least)


def _at_most(text: str, values: Sequence[float], most: float, kind: type[Goal] = UnitGoal) -> Goal:
    found, low, high = statistics.median(values), min(values), max(values)
    met = found <= most
    return kind(text, found, low, high, met, always=high <= most if met else low > most)


def _of_growth(growth: Sequence[HistoryGrowth]) -> Iterator[Goal]:
    for grown in growth[1:]:
        for scenario in GROWING:
            few, many = f"{growth[0].finished_jobs:,}", f"{grown.finished_jobs:,}"
            text = (
                f"{SCENARIO_TEXT[scenario]} with {many} finished jobs at most {GROWTH_MAX:g} × slower than with {few}"
            )
            yield _at_most(text, grown.slower_than(growth[0], scenario), GROWTH_MAX, Goal)
