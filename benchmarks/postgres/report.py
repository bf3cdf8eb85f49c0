"""The report, as Markdown with padded columns for the terminal and for RESULTS.md."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.postgres.goals import OURS
from benchmarks.postgres.result_rows import GROWING, HistoryGrowth, Row, Table
from benchmarks.queue.goals import Goal
from benchmarks.queue.machine import Machine
from benchmarks.queue.report import count_disturbed, markdown_table, other_load_line

NAMES: Final = {OURS: "**Ingot**", "floor": "floor: the same rows", "bare": "two tables", "graphile": "graphile-worker"}
ABOUT: Final = (
    "Jobs do nothing and have a payload of about 200 bytes. Each run is a new process on a fresh database; callers and "
    "the worker share that process. Systems in Python run on uvloop. All numbers are medians of the runs."
)


@dataclass(frozen=True, slots=True)
class Report:
    machine: Machine
    server: str
    sync_micros: tuple[float, float]
    tables: Sequence[Table]
    growth: Sequence[HistoryGrowth]
    growth_failure: str
    goals: Sequence[Goal]
    held_seconds: float
    minutes: float

    def markdown(self) -> str:
        before, after = self.sync_micros
        machine = self.machine
        lines = [f"## PostgreSQL: {machine.when}, revision {machine.revision}", ""]
        lines += [f"{machine.cpu}, {machine.cores} cores; {machine.kernel}; load {machine.load:.2f} at the start"]
        lines += [f"{machine.python}; {self.server}; files on {machine.filesystem}"]
        lines += [f"fdatasync of a 4 KiB page: {before:.0f} µs before, {after:.0f} µs after; {self.minutes:.0f} min"]
        lines += [other_load_line(self.others_shares), "", ABOUT, ""]
        for table in self.tables:
            held = f", {self.held_seconds:g} s" if table.part.name == "held" else ""
            lines += [f"### {table.part.title}{held}", "", *render(table), ""]
        if self.growth or self.growth_failure:
            rows = [f"A run failed: {self.growth_failure}"] if self.growth_failure else render_growth(self.growth)
            lines += ["### Ingot with finished jobs already in the database", "", *rows, ""]
        lines += ["### Goals on PostgreSQL", "", *(f"- {goal.line}" for goal in self.goals), ""]
        return "\n".join(lines)

    @property
    def others_shares(self) -> list[float]:
        runs = [run for table in self.tables for row in table.rows for run in row.runs]
        runs += [run for growth in self.growth for scenario_runs in growth.runs.values() for run in scenario_runs]
        return [run.others_share for run in runs]

    @property
    def disturbed_runs(self) -> int:
        return count_disturbed(self.others_shares)


def render(table: Table) -> list[str]:
    columns = {
        "single": ["jobs/s", "lowest–highest", "p50 ms", "p99 ms", "Ingot is"],
        "bulk": ["jobs/s", "lowest–highest", "Ingot is"],
        "run": ["jobs/s", "lowest–highest", "Ingot is"],
        "latency": ["p50 ms", "p99 ms", "p99 lowest–highest", "Ingot's p50 is"],
        "held": ["jobs/s before", "jobs/s at the end", "lost", "Ingot is, at the end"],
    }
    head = ["system", "version", *columns[table.part.name], "how"]
    ours = table.row(OURS)
    rows = [
        [NAMES.get(row.system, row.system), row.version, *_cells(row, table, ours), _how(row)] for row in table.rows
    ]
    return markdown_table([head, *rows], text_columns=(0, 1, len(head) - 1))


def _cells(row: Row, table: Table, ours: Row | None) -> list[str]:
    p50, p99 = row.median(lambda run: run.p50_ms), row.median(lambda run: run.p99_ms)
    rate, ratio = f"{row.rate:,.0f}", "–"
    if not row.runs:
        return [""] * {"single": 5, "latency": 4, "held": 4}.get(table.part.name, 3)
    if table.part.name == "latency":
        p99s = [run.p99_ms for run in row.runs]
        ratio = f"{ours.median(lambda run: run.p50_ms) / p50:.2f} ×" if ours else ratio
        return [f"{p50:.2f}", f"{p99:.2f}", f"{min(p99s):.2f}–{max(p99s):.2f}", ratio]
    ratio = f"{ours.rate / row.rate:.2f} ×" if ours and row.rate else ratio
    if table.part.name == "held":
        before = f"{row.median(lambda run: run.before_rate):,.0f}"
        return [before, rate, f"{statistics.median(row.losses):.0%}" if row.losses else "–", ratio]
    rate_range = f"{min(row.rates):,.0f}–{max(row.rates):,.0f}"
    latencies = [f"{p50:.2f}", f"{p99:.2f}"] if table.part.name == "single" else []
    return [rate, rate_range, *latencies, ratio]


def _how(row: Row) -> str:
    if not row.failure:
        return row.options.label
    return f"{row.options.label}; a run failed: {row.failure}" if row.options.label else row.failure


def render_growth(growth: Sequence[HistoryGrowth]) -> list[str]:
    head = ["finished jobs", "single enqueues/s", "× slower", "run to completion/s", "× slower"]
    rows = []
    for entry in growth:
        cells = [f"{entry.finished_jobs:,}"]
        for scenario in GROWING:
            slower = statistics.median(entry.slower_than(growth[0], scenario))
            cells += [f"{entry.rate(scenario):,.0f}", f"{slower:.2f}"]
        rows.append(cells)
    return markdown_table([head, *rows], text_columns=())
