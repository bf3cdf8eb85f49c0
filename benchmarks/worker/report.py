"""Tables for the terminal and for RESULTS.md: the same Markdown, padded so that both read well."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from benchmarks.queue.machine import Machine
from benchmarks.queue.report import grid, others_line
from benchmarks.worker.adapter import Row
from benchmarks.worker.goals import BEAT_SECONDS, OURS, Found, judge, latency, rate
from benchmarks.worker.server_cost import ServerCost
from benchmarks.worker.systems import load

ABOUT: Final = """
Jobs do nothing and carry about 200 bytes. Every run has a fresh server, one worker process, and a process that submits.
*Drained* are jobs that wait when the worker starts, from the first start until all are settled. *Steady* are jobs that
come while it runs, until all are settled. *Start* is from the start of the worker's process to its first job. Figures
are medians of the runs. A system of Ingot *is* so many times the row's figure.
""".strip()
MINUTE: Final = 60.0


class Report(msgspec.Struct, kw_only=True):
    machine: Machine
    servers: str
    sync_micros: tuple[float, float]
    found: Found
    left_out: Mapping[Row, str]
    costs: Sequence[ServerCost]
    minutes: float

    def markdown(self) -> str:
        machine, (before, after) = self.machine, self.sync_micros
        lines = [f"## Workers: {machine.when}, revision {machine.revision}", "", *machine.lines, self.servers]
        lines += [f"fdatasync of a 4 KiB page: {before:.0f} µs before, {after:.0f} µs after; {self.minutes:.0f} min"]
        lines += [others_line([run.others_share for runs in self.found.values() for run in runs]), ""]
        if self.found:
            lines += [ABOUT, "", *_left_out(self.left_out)]
            lines += ["### Jobs that do nothing, one worker process", "", *_rates(self.found), ""]
            lines += ["### From enqueue to the start of the handler, idle", "", *_latencies(self.found), ""]
            lines += ["### How each was run", "", *_ways(self.found), ""]
        if self.costs:
            lines += ["### What workers cost the server", "", *_costs(self.costs), ""]
        lines += ["### Goals of workers", "", *(f"- {line}" for line in judge(self.found, self.costs)), ""]
        return "\n".join(lines)


def _left_out(rows: Mapping[Row, str]) -> list[str]:
    """A sentence for each, so that nothing is missing in silence."""
    lines = [f"- {row.title.replace('*', '')} ({row.durable}) is left out: {why}" for row, why in rows.items()]
    return [*lines, ""] if lines else []


def _rates(found: Found) -> list[str]:
    ours = [row for row in OURS if rate(found, row)]
    head = ["system", "durable", "drained jobs/s", "lowest–highest", "steady jobs/s", "start s"]
    head += [f"{row.title.replace('*', '')} is" for row in ours]
    rows = []
    for row, runs in found.items():
        if not runs:
            continue
        rates = [run.rate for run in runs]
        rows.append([
            row.title, row.durable, f"{rate(found, row):,.0f}", f"{min(rates):,.0f}–{max(rates):,.0f}",
            f"{statistics.median(run.steady_rate for run in runs):,.0f}",
            f"{statistics.median(run.start_seconds for run in runs):.2f}",
            *(f"{rate(found, one) / rate(found, row):.2f} ×" for one in ours),
        ])  # fmt: skip
    return grid([head, *rows], words=(0, 1))


def _latencies(found: Found) -> list[str]:
    known = {row: percentiles for row in found if (percentiles := latency(found, row)) is not None}
    ours = [row for row in OURS if row in known]
    head = ["system", "durable", "p50 ms", "p99 ms", *(f"p50 of {row.title.replace('*', '')} is" for row in ours)]
    rows = [
        [row.title, row.durable, f"{p50:.2f}", f"{p99:.2f}", *(f"{known[one][0] / p50:.2f} ×" for one in ours)]
        for row, (p50, p99) in known.items()
    ]
    return grid([head, *rows], words=(0, 1))


def _ways(found: Found) -> list[str]:
    systems = {row.system: load(row.system) for row, runs in found.items() if runs}
    return grid([["system", "version", "how"], *([one.name, one.version, one.how] for one in systems.values())],
                words=(0, 1, 2))  # fmt: skip


def _costs(costs: Sequence[ServerCost]) -> list[str]:
    head = ["workers", "engine", "requests/min", "commits or statements/min", f"per {BEAT_SECONDS:g} s"]
    head += ["KiB written/min", "server CPU s/min", "database CPU s/min"]
    rows = [
        [
            cost.crowd.title,
            cost.engine,
            f"{cost.per(MINUTE, lambda one: one.requests):,.0f}",
            f"{cost.per(MINUTE, lambda one: one.transactions):,.0f}",
            f"{cost.per(BEAT_SECONDS, lambda one: one.transactions):,.1f}",
            f"{cost.per(MINUTE, lambda one: one.kib_written):,.0f}",
            f"{cost.per(MINUTE, lambda one: one.server_seconds):.2f}",
            f"{cost.per(MINUTE, lambda one: one.database_seconds):.2f}" if cost.engine == "PostgreSQL" else "–",
        ]
        for cost in costs
    ]
    lines = grid([head, *rows], words=(0, 1))
    return [*lines, "", "SQLite counts commits, PostgreSQL statements; what it writes is its log."]
