"""The report, as Markdown with padded columns for the terminal and for RESULTS.md."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.queue.adapter import RunResult
from benchmarks.queue.goals import Goal
from benchmarks.queue.machine import Machine
from benchmarks.queue.other_load import DISTURBED_SHARE
from benchmarks.queue.result_rows import HistoryGrowth, Row, Table

SYNCHRONOUS: Final = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
NAMES: Final = {"ingot": "**Ingot**", "floor": "group-commit floor"}
HEAD: Final = """# Results of `make bench`

Each section is one run on one machine, with medians. Each measured run is a new process on fresh files. *Synchronous*
is the setting that the writing connection reports. *Ingot is* shows Ingot's number divided by that of the row. *How*
shows the fastest options that were tried for that system. Beside a busy event loop, *loop got* is the share of a core
that was left for the busy coroutine.
"""


@dataclass(frozen=True, slots=True)
class Report:
    machine: Machine
    sync_micros: tuple[float, float]
    tables: Sequence[Table]
    growth: Sequence[HistoryGrowth]
    goals: Sequence[Goal]
    minutes: float

    def markdown(self) -> str:
        before, after = self.sync_micros
        lines = [f"## {self.machine.when}, revision {self.machine.revision}", "", *self.machine.lines]
        lines += [f"fdatasync of a 4 KiB page: {before:.0f} µs before, {after:.0f} µs after; {self.minutes:.0f} min"]
        lines += [other_load_line(self.others_shares), ""]
        for table in self.tables:
            lines += [f"### {table.part.title}", "", *render(table), ""]
        if self.growth:
            lines += ["### Ingot with finished jobs already in the file", "", *render_growth(self.growth), ""]
        lines += ["### Goals", "", *(f"- {goal.line}" for goal in self.goals), ""]
        return "\n".join(lines)

    @property
    def others_shares(self) -> list[float]:
        runs = [run for table in self.tables for row in table.rows for run in row.runs]
        runs += [run for growth in self.growth for scenario_runs in growth.runs.values() for run in scenario_runs]
        return [run.others_share for run in runs]

    @property
    def disturbed_runs(self) -> int:
        return count_disturbed(self.others_shares)


def count_disturbed(shares: Sequence[float]) -> int:
    """Return how many runs are not meaningful, because other programs used too much CPU time."""
    return sum(share > DISTURBED_SHARE for share in shares)


def other_load_line(shares: Sequence[float]) -> str:
    """Return a sentence about the CPU time that other programs used during the runs."""
    shares = shares or [0.0]
    text = f"Other programs used {statistics.median(shares):.0%} of a core (median), at most {max(shares):.0%}."
    if not count_disturbed(shares):
        return text
    return f"{text} **DISTURBED: {count_disturbed(shares)} of {len(shares)} runs. Repeat on an idle machine.**"


def append_report(markdown: str, path: Path) -> None:
    """Append a report to the results."""
    existing = path.read_text() if path.exists() else HEAD
    path.write_text(f"{existing.rstrip()}\n\n{markdown.rstrip()}\n")


def render(table: Table) -> list[str]:
    ours = next((row for row in table.rows if row.system == "ingot"), None)
    single = table.part.scenario == "single"
    head = ["system", "synchronous"]
    head += ["enqueues/s"] if single else ["enqueue/s", "claim + settle/s", "end to end/s"]
    head += ["lowest–highest", *(["p50 ms", "p99 ms"] if single else []), "Ingot is"]
    head += [*(["loop got"] if table.part.busy else []), "how"]
    return markdown_table([head, *(_cells(row, table, ours) for row in table.rows)], text_columns=(0, 1, len(head) - 1))


def _cells(row: Row, table: Table, ours: Row | None) -> list[str]:
    name = NAMES.get(row.system, row.system)
    single = table.part.scenario == "single"
    if not row.runs:
        blanks = [""] * (6 if table.part.busy else 5)
        return [name, row.level, *blanks, f"failed: {row.failure}"]
    cells = [name, _durability(row)]
    if not single:
        cells += [f"{row.median(lambda run: run.enqueue_rate):,.0f}", f"{row.median(lambda run: run.take_rate):,.0f}"]
    cells += [f"{row.rate:,.0f}", f"{min(row.rates):,.0f}–{max(row.rates):,.0f}"]
    if single:
        cells += [_milliseconds(row, lambda run: run.p50_ms), _milliseconds(row, lambda run: run.p99_ms)]
    cells.append(f"{ours.rate / row.rate:.2f} ×" if ours and ours.runs and row.rate else "–")
    if table.part.busy:
        cells.append(f"{row.median(lambda run: run.busy_share):.0%}")
    return [*cells, _how(row)]


def _durability(row: Row) -> str:
    level = SYNCHRONOUS.get(row.runs[0].readback.synchronous, "?")
    return f"{level} (default)" if row.level == "default" else level


def _milliseconds(row: Row, of: Callable[[RunResult], float]) -> str:
    return f"{row.median(of):.2f}"


def _how(row: Row) -> str:
    parts = [row.options.label]
    if row.runs[0].readback.journal_mode != "wal":
        parts.append(f"journal {row.runs[0].readback.journal_mode}")
    if errors := sum(run.locked_errors for run in row.runs):
        parts.append(f"{errors} × database is locked")
    if row.failure:
        parts.append(f"a run failed: {row.failure}")
    return "; ".join(parts)


def render_growth(growth: Sequence[HistoryGrowth]) -> list[str]:
    head = ["finished jobs", "enqueues/s", "× slower", "end to end/s", "× slower"]
    empty, rows = growth[0], []
    for entry in growth:
        cells = [f"{entry.finished_jobs:,}"]
        for scenario in ("single", "pipeline"):
            slower = statistics.median(entry.slower_than(empty, scenario))
            cells += [f"{entry.rate(scenario):,.0f}", f"{slower:.2f}"]
        rows.append(cells)
    return markdown_table([head, *rows], text_columns=())


def markdown_table(rows: Sequence[Sequence[str]], *, text_columns: Sequence[int]) -> list[str]:
    """Return a Markdown table. Text columns are aligned to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if column in text_columns else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return f"| {' | '.join(cells)} |"

    marks = ["-" * width if column in text_columns else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    return [line(rows[0]), line(marks), *(line(row) for row in rows[1:])]
