"""The report, as Markdown with padded columns for the terminal and for RESULTS.md."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from benchmarks.queue.machine import Machine
from benchmarks.queue.report import markdown_table, other_load_line
from benchmarks.worker.adapter import Row
from benchmarks.worker.goals import HEARTBEAT_SECONDS, OURS, Results, judge, latency, rate
from benchmarks.worker.server_cost import ServerCost
from benchmarks.worker.systems import load

ABOUT: Final = """
Jobs do nothing and have a payload of about 200 bytes. Every run has a fresh server, one worker process, and a process
that submits. *Drained* jobs are enqueued before the worker starts; the time is from the first start until all are
settled. *Steady* jobs are enqueued while the worker runs; the time ends when all are settled. *Start* is the time from
the start of the worker process to its first job. All numbers are medians of the runs. A column *… is* shows Ingot's
number divided by that of the row.
""".strip()
MINUTE: Final = 60.0


class Report(msgspec.Struct, kw_only=True):
    machine: Machine
    servers: str
    sync_micros: tuple[float, float]
    results: Results
    skipped: Mapping[Row, str]
    costs: Sequence[ServerCost]
    minutes: float

    def markdown(self) -> str:
        machine, (before, after) = self.machine, self.sync_micros
        lines = [f"## Workers: {machine.when}, revision {machine.revision}", "", *machine.lines, self.servers]
        lines += [f"fdatasync of a 4 KiB page: {before:.0f} µs before, {after:.0f} µs after; {self.minutes:.0f} min"]
        lines += [other_load_line([run.others_share for runs in self.results.values() for run in runs]), ""]
        if self.results:
            lines += [ABOUT, "", *_skipped(self.skipped)]
            lines += ["### Jobs that do nothing, one worker process", "", *_rates(self.results), ""]
            lines += [
                "### Time from enqueue to the start of the handler, idle worker",
                "",
                *_latencies(self.results),
                "",
            ]
            lines += ["### How each system was run", "", *_setups(self.results), ""]
        if self.costs:
            lines += ["### Cost of workers for the server", "", *_costs(self.costs), ""]
        lines += ["### Goals of workers", "", *(f"- {line}" for line in judge(self.results, self.costs)), ""]
        return "\n".join(lines)


def _skipped(rows: Mapping[Row, str]) -> list[str]:
    """Return a line with the reason for each row that was not measured."""
    lines = [f"- {row.title.replace('*', '')} ({row.durable}) was skipped: {reason}" for row, reason in rows.items()]
    return [*lines, ""] if lines else []


def _rates(results: Results) -> list[str]:
    ours = [row for row in OURS if rate(results, row)]
    head = ["system", "durable", "drained jobs/s", "lowest–highest", "steady jobs/s", "start s"]
    head += [f"{row.title.replace('*', '')} is" for row in ours]
    rows = []
    for row, runs in results.items():
        if not runs:
            continue
        rates = [run.rate for run in runs]
        rows.append([
            row.title, row.durable, f"{rate(results, row):,.0f}", f"{min(rates):,.0f}–{max(rates):,.0f}",
            f"{statistics.median(run.steady_rate for run in runs):,.0f}",
            f"{statistics.median(run.start_seconds for run in runs):.2f}",
            *(f"{rate(results, our_row) / rate(results, row):.2f} ×" for our_row in ours),
        ])  # fmt: skip
    return markdown_table([head, *rows], text_columns=(0, 1))


def _latencies(results: Results) -> list[str]:
    percentiles_by_row = {row: percentiles for row in results if (percentiles := latency(results, row)) is not None}
    ours = [row for row in OURS if row in percentiles_by_row]
    head = ["system", "durable", "p50 ms", "p99 ms", *(f"p50 of {row.title.replace('*', '')} is" for row in ours)]
    rows = [
        [
            row.title,
            row.durable,
            f"{p50:.2f}",
            f"{p99:.2f}",
            *(f"{percentiles_by_row[our_row][0] / p50:.2f} ×" for our_row in ours),
        ]
        for row, (p50, p99) in percentiles_by_row.items()
    ]
    return markdown_table([head, *rows], text_columns=(0, 1))


def _setups(results: Results) -> list[str]:
    systems = {row.system: load(row.system) for row, runs in results.items() if runs}
    rows = [[system.name, system.version, system.how] for system in systems.values()]
    return markdown_table([["system", "version", "how"], *rows], text_columns=(0, 1, 2))


def _costs(costs: Sequence[ServerCost]) -> list[str]:
    head = ["workers", "engine", "requests/min", "commits or statements/min", f"per {HEARTBEAT_SECONDS:g} s"]
    head += ["KiB written/min", "server CPU s/min", "database CPU s/min"]
    rows = [
        [
            cost.group.title,
            cost.engine,
            f"{cost.per(MINUTE, lambda cost: cost.requests):,.0f}",
            f"{cost.per(MINUTE, lambda cost: cost.transactions):,.0f}",
            f"{cost.per(HEARTBEAT_SECONDS, lambda cost: cost.transactions):,.1f}",
            f"{cost.per(MINUTE, lambda cost: cost.kib_written):,.0f}",
            f"{cost.per(MINUTE, lambda cost: cost.server_seconds):.2f}",
            f"{cost.per(MINUTE, lambda cost: cost.database_seconds):.2f}" if cost.engine == "PostgreSQL" else "–",
        ]
        for cost in costs
    ]
    lines = markdown_table([head, *rows], text_columns=(0, 1))
    return [
        *lines,
        "",
        "SQLite counts commits and PostgreSQL statements. For PostgreSQL, *KiB written* is its write-ahead log.",
    ]
