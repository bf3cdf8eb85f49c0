"""The command: run all scenarios on both engines, print the report, and append it to the results."""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.fair.abuse import measure_abuse
from benchmarks.fair.abuse_kinds import KINDS
from benchmarks.fair.scenarios import SCENARIOS, TENANTS, CallLatency, RunRequest, RunResult, Scenario
from benchmarks.postgres.server import PostgresServer, serving
from benchmarks.queue.folders import RESULTS, bench_folder
from benchmarks.queue.machine import describe, sync_micros
from benchmarks.queue.report import append_report, markdown_table

ABOUT: Final = (
    "Compare a queue of a thousand tenants, and queues with limits, with one tenant without limits. Measure a tenant "
    "while another one abuses the server."
)
JOBS: Final = 200_000
ROUNDS: Final = 3
GOAL: Final = 0.9
CALL_MS_MAX: Final = 20
MANY_JOBS: Final = 1_000_000
RUN_SECONDS_MAX: Final = 600
CLAIMS_BY_ENGINE: Final = {"sqlite": (4, 1000), "postgres": (16, 1000)}  # Concurrent claims, and jobs of each.


@contextmanager
def new_store_address(engine: str, server: PostgresServer, folder: Path) -> Iterator[str]:
    """Create a folder or a database for one run, and yield its address."""
    if engine == "postgres":
        with server.database() as url:
            yield url
        return
    store_folder = tempfile.mkdtemp(dir=folder)
    try:
        yield store_folder
    finally:
        shutil.rmtree(store_folder)


def run_once(engine: str, scenario: Scenario, server: PostgresServer, folder: Path, jobs: int) -> RunResult:
    """Run a scenario in a new process."""
    return msgspec.json.decode(run_child("measured_run", engine, scenario.name, server, folder, jobs), type=RunResult)


def measure_large_store(engine: str, server: PostgresServer, folder: Path, jobs: int) -> list[CallLatency]:
    """Measure calls on a store with very many jobs, in a new process."""
    return msgspec.json.decode(run_child("million_jobs", engine, "one", server, folder, jobs), type=list[CallLatency])


def run_child(module: str, engine: str, scenario: str, server: PostgresServer, folder: Path, jobs: int) -> str:
    claims, claim_jobs = CLAIMS_BY_ENGINE[engine]
    with new_store_address(engine, server, folder) as address:
        request = RunRequest(
            engine=engine, scenario=scenario, address=address, jobs=jobs, claims=claims, claim_jobs=claim_jobs
        )
        command = [sys.executable, "-m", f"benchmarks.fair.{module}", msgspec.json.encode(request).decode()]
        process = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False)
    if process.returncode:
        sys.exit(f"benchmark: {engine}, {module}, {scenario}: {process.stderr[-2000:]}")
    return process.stdout


def calls_table(latencies_by_engine: dict[str, list[CallLatency]], jobs: int) -> tuple[list[str], list[str]]:
    """Return the durations of each call on each engine, and which goals are met."""
    rows = [["call", *(f"{engine}, {what} ms" for engine in latencies_by_engine for what in ("median", "worst"))]]
    for calls in zip(*latencies_by_engine.values(), strict=True):
        rows.append([calls[0].call, *(f"{ms:.1f}" for call in calls for ms in (call.median_ms, call.worst_ms))])
    goals = []
    for engine, latencies in latencies_by_engine.items():
        slowest = max(latencies, key=lambda latency: latency.worst_ms)
        met = "met" if slowest.worst_ms < CALL_MS_MAX else "NOT MET"
        goals.append(f"- {met}: {engine}, {jobs:,} jobs listed, counted and explained: each call under "
                     f"{CALL_MS_MAX} ms; the slowest took {slowest.worst_ms:.1f} ms ({slowest.call})")  # fmt: skip
    return markdown_table(rows, text_columns=(0,)), goals


def rates_table(engine: str, results: dict[str, list[RunResult]]) -> tuple[list[str], list[str]]:
    """Return the rates of one engine, and which goals are met."""
    baseline = statistics.median(run.jobs_per_second for run in results["one"])
    rows = [["queue", "jobs/s", "lowest–highest", "ratio to one tenant", f"lowest share of {2 * TENANTS:,} starts"]]
    goals = []
    for scenario in SCENARIOS:
        rates = sorted(run.jobs_per_second for run in results[scenario.name])
        ratio = statistics.median(rates) / baseline
        least = min(run.least_share for run in results[scenario.name])
        spread = f"{rates[0]:,.0f}–{rates[-1]:,.0f}"
        share = f"{least}" if scenario.tenants > 1 else "–"
        rows.append([scenario.title, f"{statistics.median(rates):,.0f}", spread, f"{ratio:.2f} ×", share])
        if scenario.name != "one":
            goals.append(f"- {'met' if ratio >= GOAL else 'NOT MET'}: {engine}, {scenario.title}: "
                         f"at least {GOAL} × of one tenant; measured {ratio:.2f} ×")  # fmt: skip
        if scenario.tenants > 1:
            is_fair = least >= 1
            goals.append(f"- {'met' if is_fair else 'NOT MET'}: {engine}: each of {TENANTS:,} tenants with work starts "
                         f"in every {2 * TENANTS:,} starts; the lowest number was {least}")  # fmt: skip
    return markdown_table(rows, text_columns=(0,)), goals


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fair", description=ABOUT)
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"number of jobs of each run (default: {JOBS:,})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"number of runs of each row (default: {ROUNDS})")
    parser.add_argument(
        "--many", type=int, default=MANY_JOBS, help=f"number of jobs of the large store, or 0 (default: {MANY_JOBS:,})"
    )
    parser.add_argument(
        "--abuse", type=int, default=ROUNDS, help=f"number of rounds with each kind of abuse, or 0 (default: {ROUNDS})"
    )
    parser.add_argument("--kind", action="append", choices=tuple(KINDS), default=[], help="kind of abuse to measure")
    parser.add_argument("--only", choices=tuple(CLAIMS_BY_ENGINE), help="engine to measure")
    parser.add_argument("--keep", action="store_true", help=f"append the report to {RESULTS.name}")
    options = parser.parse_args(arguments)
    folder = bench_folder()
    began, machine = time.monotonic(), describe(folder)
    lines, goals = [f"## Many tenants and limits: {machine.when}, revision {machine.revision}", "", *machine.lines], []
    with serving(folder.resolve()) as server:
        lines.append(f"{server.describe()}; fdatasync of a 4 KiB page: {sync_micros(folder):.0f} µs")
        if options.rounds:
            about = (
                f"{options.jobs:,} jobs of about 200 bytes, medians of {options.rounds} runs, each in a new process."
            )
            lines += ["", about]
        engines = (options.only,) if options.only else tuple(CLAIMS_BY_ENGINE)
        for engine in engines if options.rounds else ():
            results: dict[str, list[RunResult]] = {scenario.name: [] for scenario in SCENARIOS}
            for _ in range(options.rounds):  # In turn, so that a slow minute of the machine affects all.
                for scenario in SCENARIOS:
                    result = run_once(engine, scenario, server, folder, options.jobs)
                    results[scenario.name].append(result)
                    print(f"  {engine}, {scenario.title}: {result.jobs_per_second:,.0f} jobs/s", flush=True)
            rows, goal_lines = rates_table(engine, results)
            lines += ["", f"### {engine}", "", *rows]
            goals += goal_lines
        if options.many:
            latencies = {engine: measure_large_store(engine, server, folder, options.many) for engine in engines}
            rows, goal_lines = calls_table(latencies, options.many)
            lines += ["", f"### {options.many:,} jobs of one tenant, a tenth of them waiting", "", *rows]
            goals += goal_lines
        if options.abuse:
            abuse_lines, goal_lines = measure_abuse(engines, server, folder, options.abuse, options.kind)
            lines += abuse_lines
            goals += goal_lines
    lines += ["", "### Goals of many tenants and limits", "", *goals]
    lines.insert(3, f"{(time.monotonic() - began) / 60:.0f} min")
    text = "\n".join(lines)
    print(f"\n{text}")
    if options.keep:
        append_report(text, RESULTS)
        print(f"Appended to benchmarks/{RESULTS.name}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
