"""The command: run the selected parts, print the report, and append it to the results."""

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
from benchmarks.queue.report import append_report

ABOUT: Final = (
    "Compare Ingot's queue with other queues on a PostgreSQL server with fsync on, in the same run: single and bulk "
    "enqueues, jobs run to completion, and the time from enqueue to start."
)
HISTORY: Final = "history"
HISTORY_JOBS: Final = "10000,1000000,5000000"
HELD_SECONDS: Final = "300"
CHOICES: Final = (*NAMES, *(part.name for part in PARTS), HELD.name, HISTORY)


def main(arguments: list[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # Stop the server before this process ends.
    options = parse(arguments)
    plan = build_plan(options)
    try:
        report = run(plan, Path(options.files) if options.files else bench_folder())
    except (MissingDependency, RunFailed) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    print(f"\n{report.markdown()}")
    if reason := "" if options.keep else reason_not_to_append(options, plan, report):
        print(f"Not appended to benchmarks/{RESULTS.name}: {reason}. --keep appends it anyway.")
    else:
        append_report(report.markdown(), RESULTS)
        print(f"Appended to benchmarks/{RESULTS.name}.")
    has_failures = report.growth_failure or any(row.failure for table in report.tables for row in table.rows)
    misses_goals = options.strict and not all(goal.is_met for goal in report.goals)
    return 1 if has_failures or misses_goals else 0


def reason_not_to_append(options: argparse.Namespace, plan: Plan, report: Report) -> str:
    """Return why a report would be misleading, or nothing: the run was partial, or other programs disturbed it."""
    if options.quick or (options.only and options.only != [HELD.name]) or not (plan.history or options.only):
        return "the run was partial"
    if report.growth_failure:
        return "the part with finished jobs failed"
    if report.disturbed_runs:
        return f"other programs disturbed {report.disturbed_runs} runs"
    return ""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.postgres", description=ABOUT)
    parser.add_argument(
        "--quick", action="store_true", help="run a smoke test of about two minutes, without meaningful numbers"
    )
    parser.add_argument(
        "--only", action="append", choices=CHOICES, metavar="NAME",
        help=f"system or part to measure; can be repeated: {', '.join(CHOICES)}",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, help=f"number of measured runs of each row (default: {FULL.rounds})")
    parser.add_argument("--history", help=f"numbers of finished jobs to start with, or none (default: {HISTORY_JOBS})")
    parser.add_argument(
        "--held", default=HELD_SECONDS, metavar="SECONDS",
        help=f"how long --only held keeps a transaction open, or none (default: {HELD_SECONDS})",
    )  # fmt: skip
    parser.add_argument("--files", help="folder on the disk to measure (default: .bench)")
    parser.add_argument(
        "--keep",
        action="store_true",
        help=f"append the report to {RESULTS.name} even if the run was partial or disturbed",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a goal is not met")
    return parser.parse_args(arguments)


def build_plan(options: argparse.Namespace) -> Plan:
    only = options.only or []
    sizes = QUICK if options.quick else FULL
    systems = tuple(name for name in NAMES if name in only) or NAMES
    held_seconds = 0.0 if options.held == "none" else float(options.held)
    parts = tuple(part for part in (*PARTS, HELD) if part.name in only and (part is not HELD or held_seconds))
    if not parts and HISTORY not in only and HELD.name not in only:
        parts = PARTS
    with_history = OURS in systems and (HISTORY in only or not (options.quick or only))
    history_text = options.history or (HISTORY_JOBS if with_history else "none")
    history = () if history_text == "none" else tuple(sorted(int(count) for count in history_text.split(",")))
    return Plan(parts, systems, history, held_seconds, replace(sizes, rounds=options.rounds or sizes.rounds))


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
            growth = campaign.growth(ingot_options(tables)) if plan.history else []
        except RunFailed as error:
            failure = str(error)  # The tables measured before are still reported.
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


def ingot_options(tables: list[Table]) -> dict[Scenario, DriveOptions]:
    """Return the options that were chosen for Ingot on a fresh database, or its first ones if no part was run."""
    options_by_scenario = {scenario: choices[0] for scenario, choices in load(OURS).options.items()}
    for table in tables:
        if row := table.row(OURS):
            options_by_scenario[table.part.scenario] = row.options
    return options_by_scenario


if __name__ == "__main__":
    sys.exit(main())
