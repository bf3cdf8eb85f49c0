"""The command: read what is wanted, run it, print the tables, keep the results."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.postgres.adapter import DriveOptions, Scenario
from benchmarks.postgres.campaign import Campaign
from benchmarks.postgres.goals import OURS, judge
from benchmarks.postgres.plan import FULL, HELD, PARTS, QUICK, Plan
from benchmarks.postgres.report import Report
from benchmarks.postgres.result_rows import HistoryGrowth, Table
from benchmarks.postgres.server import serving
from benchmarks.postgres.systems import NAMES, load
from benchmarks.queue.adapter import MissingDependency
from benchmarks.queue.campaign import RunFailed
from benchmarks.queue.folders import RESULTS, bench_folder
from benchmarks.queue.machine import describe, sync_micros
from benchmarks.queue.report import keep

ABOUT: Final = (
    "Measure Ingot's queue on a PostgreSQL with fsync on, beside other PostgreSQL queues in the same run: single and "
    "bulk enqueues, running jobs to completion, and the time from enqueue to start."
)
HISTORY: Final = "history"
HISTORY_JOBS: Final = "10000,1000000,5000000"
HELD_SECONDS: Final = "300"
CHOICES: Final = (*NAMES, *(part.name for part in PARTS), HELD.name, HISTORY)


def main(arguments: list[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # The server must not outlive us.
    wanted = parse(arguments)
    plan = plan_of(wanted)
    try:
        report = run(plan, Path(wanted.files) if wanted.files else bench_folder())
    except (MissingDependency, RunFailed) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    print(f"\n{report.markdown()}")
    if refusal := "" if wanted.keep else why_not_kept(wanted, plan, report):
        print(f"Not kept in benchmarks/{RESULTS.name}: {refusal}. --keep keeps it all the same.")
    else:
        keep(report.markdown(), RESULTS)
        print(f"Kept in benchmarks/{RESULTS.name}.")
    failed = report.growth_failure or any(row.failure for table in report.tables for row in table.rows)
    missed = wanted.strict and not all(goal.met for goal in report.goals)
    return 1 if failed or missed else 0


def why_not_kept(wanted: argparse.Namespace, plan: Plan, report: Report) -> str:
    """Results that would mislead are not kept: parts of a run, and runs that other work disturbed."""
    if wanted.quick or (wanted.only and wanted.only != [HELD.name]) or not (plan.history or wanted.only):
        return "it is part of a run"
    if report.growth_failure:
        return "the part with finished jobs failed"
    if report.disturbed_runs:
        return f"other work disturbed {report.disturbed_runs} runs"
    return ""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.postgres", description=ABOUT)
    parser.add_argument("--quick", action="store_true", help="a smoke run of about two minutes; figures mean little")
    parser.add_argument(
        "--only", action="append", choices=CHOICES, metavar="NAME",
        help=f"only this system or part; may be repeated: {', '.join(CHOICES)}",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, help=f"measured runs of each row (default {FULL.rounds})")
    parser.add_argument("--history", help=f"finished jobs to begin with, or none (default {HISTORY_JOBS})")
    parser.add_argument(
        "--held", default=HELD_SECONDS, metavar="SECONDS",
        help=f"how long the part held holds a transaction, or none (default {HELD_SECONDS}); it runs with --only held",
    )  # fmt: skip
    parser.add_argument("--files", help="folder to measure in (default .bench); it decides which disk is measured")
    parser.add_argument("--keep", action="store_true", help=f"write to {RESULTS.name} whatever this run was like")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a goal is not met")
    return parser.parse_args(arguments)


def plan_of(wanted: argparse.Namespace) -> Plan:
    only = wanted.only or []
    sizes = QUICK if wanted.quick else FULL
    systems = tuple(name for name in NAMES if name in only) or NAMES
    held_seconds = 0.0 if wanted.held == "none" else float(wanted.held)
    parts = tuple(part for part in (*PARTS, HELD) if part.name in only and (part is not HELD or held_seconds))
    if not parts and HISTORY not in only and HELD.name not in only:
        parts = PARTS
    with_history = OURS in systems and (HISTORY in only or not (wanted.quick or only))
    text = wanted.history or (HISTORY_JOBS if with_history else "none")
    history = () if text == "none" else tuple(sorted(int(count) for count in text.split(",")))
    return Plan(parts, systems, history, held_seconds, replace(sizes, rounds=wanted.rounds or sizes.rounds))


def run(plan: Plan, folder: Path) -> Report:
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    machine, sync_before = describe(folder), sync_micros(folder)
    with serving(folder.resolve()) as server:
        settings = server.describe()
        print(f"{settings}; files on {machine.filesystem}", flush=True)
        campaign = Campaign(plan, server, lambda text: print(text, flush=True))
        tables = [campaign.table(part) for part in plan.parts]
        growth: list[HistoryGrowth] = []
        failure = ""
        try:
            growth = campaign.growth(ours_ways(tables)) if plan.history else []
        except RunFailed as error:
            failure = str(error)  # The tables before it are worth keeping.
    return Report(
        machine=machine,
        server=settings,
        sync_micros=(sync_before, sync_micros(folder)),
        tables=tables,
        growth=growth,
        growth_failure=failure,
        goals=judge(tables, growth),
        held_seconds=plan.held_seconds,
        minutes=(time.monotonic() - began) / 60,
    )


def ours_ways(tables: list[Table]) -> dict[Scenario, DriveOptions]:
    """The ways chosen for Ingot on a fresh database, or its first ones when those parts were not run."""
    ways = {scenario: choices[0] for scenario, choices in load(OURS).ways.items()}
    for table in tables:
        if row := table.row(OURS):
            ways[table.part.scenario] = row.way
    return ways


if __name__ == "__main__":
    sys.exit(main())
