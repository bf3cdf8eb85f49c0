"""The command: run the selected parts, print the report, and append it to the results."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.queue.adapter import DriveOptions, MissingDependency, Scenario
from benchmarks.queue.campaign import OURS, Campaign
from benchmarks.queue.folders import RESULTS, bench_folder
from benchmarks.queue.goals import judge
from benchmarks.queue.machine import describe, sync_micros
from benchmarks.queue.plan import FULL, PARTS, QUICK, Plan
from benchmarks.queue.report import Report, append_report
from benchmarks.queue.result_rows import Table
from benchmarks.queue.systems import NAMES, load

ABOUT: Final = (
    "Compare how many jobs per second Ingot and other queues on SQLite enqueue, claim and settle, on the same disk in "
    "the same run. Print the ratios, and whether Ingot meets its goals."
)
HISTORY: Final = "history"
HISTORY_JOBS: Final = "1000000,5000000"
CHOICES: Final = (*NAMES, *(part.name for part in PARTS), HISTORY)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    plan = build_plan(options)
    try:
        for name in plan.systems:
            load(name)
        report = run(plan, Path(options.files) if options.files else bench_folder())
    except MissingDependency as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    print(f"\n{report.markdown()}")
    if reason := "" if options.keep else reason_not_to_append(options, plan, report):
        print(f"Not appended to benchmarks/{RESULTS.name}: {reason}. --keep appends it anyway.")
    else:
        append_report(report.markdown(), RESULTS)
        print(f"Appended to benchmarks/{RESULTS.name}.")
    has_failures = any(row.failure for table in report.tables for row in table.rows)
    misses_goals = options.strict and not all(goal.is_met for goal in report.goals)
    return 1 if has_failures or misses_goals else 0


def reason_not_to_append(options: argparse.Namespace, plan: Plan, report: Report) -> str:
    """Return why a report would be misleading, or nothing: the run was partial, or other programs disturbed it."""
    if options.quick or options.only or not plan.history:
        return "the run was partial"
    if report.disturbed_runs:
        return f"other programs disturbed {report.disturbed_runs} runs"
    return ""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queue", description=ABOUT)
    parser.add_argument(
        "--quick", action="store_true", help="run a smoke test of less than a minute, without meaningful numbers"
    )
    parser.add_argument(
        "--only", action="append", choices=CHOICES, metavar="NAME",
        help=f"system or part to measure; can be repeated: {', '.join(CHOICES)}",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, help=f"number of measured runs of each row (default: {FULL.rounds})")
    parser.add_argument("--history", help=f"numbers of finished jobs to start with, or none (default: {HISTORY_JOBS})")
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
    parts = tuple(part for part in PARTS if part.name in only)
    if not parts and HISTORY not in only:
        parts = PARTS
    with_history = OURS in systems and (HISTORY in only or not (options.quick or only))
    history_text = options.history or (HISTORY_JOBS if with_history else "none")
    history = () if history_text == "none" else tuple(int(count) for count in history_text.split(","))
    return Plan(parts, systems, history, replace(sizes, rounds=options.rounds or sizes.rounds))


def run(plan: Plan, folder: Path) -> Report:
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="files-") as files:
        machine, sync_before = describe(Path(files)), sync_micros(Path(files))
        print("\n".join(machine.lines), flush=True)
        campaign = Campaign(plan, Path(files), lambda text: print(text, flush=True))
        tables: list[Table] = []
        for part in plan.parts:
            pipeline_table = next((table for table in tables if table.part.name == "pipeline"), None)
            tables.append(campaign.table(part, pipeline_table if part.name == "pipeline-deep" else None))
        growth = campaign.growth(ingot_options(tables)) if plan.history else []
        return Report(
            machine=machine,
            sync_micros=(sync_before, sync_micros(Path(files))),
            tables=tables,
            growth=growth,
            goals=judge(tables, growth),
            minutes=(time.monotonic() - began) / 60,
        )


def ingot_options(tables: list[Table]) -> dict[Scenario, DriveOptions]:
    """Return the options chosen for Ingot without a busy loop, or its first ones if those parts were not run."""
    options_by_scenario = {scenario: choices[0] for scenario, choices in load(OURS).options.items()}
    for table in tables:
        for row in table.rows:
            if row.system == OURS and table.part.name in options_by_scenario:
                options_by_scenario[table.part.scenario] = row.options
    return options_by_scenario


if __name__ == "__main__":
    sys.exit(main())
