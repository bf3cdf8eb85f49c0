"""The command: read what is wanted, run it, print the tables, keep the results."""

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
from benchmarks.queue.report import Report, keep
from benchmarks.queue.result_rows import Table
from benchmarks.queue.systems import NAMES, load

ABOUT: Final = (
    "Measure how many jobs a second Ingot's queue enqueues, claims and settles, beside other SQLite queues on the same "
    "disk in the same run. Prints tables with the ratios between them, and whether Ingot's goals are met."
)
HISTORY: Final = "history"
HISTORY_JOBS: Final = "1000000,5000000"
CHOICES: Final = (*NAMES, *(part.name for part in PARTS), HISTORY)


def main(arguments: list[str] | None = None) -> int:
    wanted = parse(arguments)
    plan = plan_of(wanted)
    try:
        for name in plan.systems:
            load(name)
        report = run(plan, Path(wanted.files) if wanted.files else bench_folder())
    except MissingDependency as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    print(f"\n{report.markdown()}")
    if refusal := "" if wanted.keep else why_not_kept(wanted, plan, report):
        print(f"Not kept in benchmarks/{RESULTS.name}: {refusal}. --keep keeps it all the same.")
    else:
        keep(report.markdown(), RESULTS)
        print(f"Kept in benchmarks/{RESULTS.name}.")
    failed = any(row.failure for table in report.tables for row in table.rows)
    missed = wanted.strict and not all(goal.met for goal in report.goals)
    return 1 if failed or missed else 0


def why_not_kept(wanted: argparse.Namespace, plan: Plan, report: Report) -> str:
    """Results that would mislead are not kept: parts of a run, and runs that other work disturbed."""
    if wanted.quick or wanted.only or not plan.history:
        return "it is part of a run"
    if report.disturbed_runs:
        return f"other work disturbed {report.disturbed_runs} runs"
    return ""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queue", description=ABOUT)
    parser.add_argument("--quick", action="store_true", help="a smoke run of under a minute; figures mean little")
    parser.add_argument(
        "--only", action="append", choices=CHOICES, metavar="NAME",
        help=f"only this system or part; may be repeated: {', '.join(CHOICES)}",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, help=f"measured runs of each row (default {FULL.rounds})")
    parser.add_argument("--history", help=f"finished jobs to begin with, or none (default {HISTORY_JOBS})")
    parser.add_argument("--files", help="folder to measure in (default .bench); it decides which disk is measured")
    parser.add_argument("--keep", action="store_true", help=f"write to {RESULTS.name} whatever this run was like")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a goal is not met")
    return parser.parse_args(arguments)


def plan_of(wanted: argparse.Namespace) -> Plan:
    only = wanted.only or []
    sizes = QUICK if wanted.quick else FULL
    systems = tuple(name for name in NAMES if name in only) or NAMES
    parts = tuple(part for part in PARTS if part.name in only)
    if not parts and HISTORY not in only:
        parts = PARTS
    with_history = OURS in systems and (HISTORY in only or not (wanted.quick or only))
    text = wanted.history or (HISTORY_JOBS if with_history else "none")
    history = () if text == "none" else tuple(int(count) for count in text.split(","))
    return Plan(parts, systems, history, replace(sizes, rounds=wanted.rounds or sizes.rounds))


def run(plan: Plan, folder: Path) -> Report:
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="files-") as files:
        machine, sync_before = describe(Path(files)), sync_micros(Path(files))
        print("\n".join(machine.lines), flush=True)
        campaign = Campaign(plan, Path(files), lambda text: print(text, flush=True))
        tables: list[Table] = []
        for part in plan.parts:
            shallow = next((table for table in tables if table.part.name == "pipeline"), None)
            tables.append(campaign.table(part, shallow if part.name == "pipeline-deep" else None))
        growth = campaign.growth(ours_ways(tables)) if plan.history else []
        return Report(
            machine=machine,
            sync_micros=(sync_before, sync_micros(Path(files))),
            tables=tables,
            growth=growth,
            goals=judge(tables, growth),
            minutes=(time.monotonic() - began) / 60,
        )


def ours_ways(tables: list[Table]) -> dict[Scenario, DriveOptions]:
    """The ways chosen for Ingot on quiet files, or its first ones when those parts were not run."""
    ways = {scenario: choices[0] for scenario, choices in load(OURS).ways.items()}
    for table in tables:
        for row in table.rows:
            if row.system == OURS and table.part.name in ways:
                ways[table.part.scenario] = row.way
    return ways


if __name__ == "__main__":
    sys.exit(main())
