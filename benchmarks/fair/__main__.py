"""The command: run every scene on both engines, print the ratios, keep the results."""

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

from benchmarks.fair.scenarios import SCENES, TENANTS, CallLatency, RunRequest, RunResult, Scenario
from benchmarks.postgres.server import PostgresServer, serving
from benchmarks.queue.folders import RESULTS, bench_folder
from benchmarks.queue.machine import describe, sync_micros
from benchmarks.queue.report import append_report, markdown_table

ABOUT: Final = "Run a queue of a thousand tenants, and queues with limits, beside one tenant without any."
JOBS: Final = 200_000
ROUNDS: Final = 3
GOAL: Final = 0.9
CALL_MS_MAX: Final = 20
MANY_JOBS: Final = 1_000_000
RUN_SECONDS_MAX: Final = 600
WAYS: Final = {"sqlite": (4, 1000), "postgres": (16, 1000)}  # Claims under way, and jobs in each.


@contextmanager
def place_for(engine: str, server: PostgresServer, folder: Path) -> Iterator[str]:
    """A folder or a database for one run."""
    if engine == "postgres":
        with server.database() as url:
            yield url
        return
    place = tempfile.mkdtemp(dir=folder)
    try:
        yield place
    finally:
        shutil.rmtree(place)


def run_once(engine: str, scene: Scenario, server: PostgresServer, folder: Path, jobs: int) -> RunResult:
    """One run in a process of its own."""
    return msgspec.json.decode(run_child("measured_run", engine, scene.name, server, folder, jobs), type=RunResult)


def look(engine: str, server: PostgresServer, folder: Path, jobs: int) -> list[CallLatency]:
    """The same for a store with very many jobs."""
    return msgspec.json.decode(run_child("million_jobs", engine, "one", server, folder, jobs), type=list[CallLatency])


def run_child(module: str, engine: str, scene: str, server: PostgresServer, folder: Path, jobs: int) -> str:
    claims, claim_jobs = WAYS[engine]
    with place_for(engine, server, folder) as place:
        order = RunRequest(engine=engine, scene=scene, place=place, jobs=jobs, claims=claims, claim_jobs=claim_jobs)
        command = [sys.executable, "-m", f"benchmarks.fair.{module}", msgspec.json.encode(order).decode()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False)
    if done.returncode:
        sys.exit(f"benchmark: {engine}, {module}, {scene}: {done.stderr[-2000:]}")
    return done.stdout


def table_of_looks(found: dict[str, list[CallLatency]], jobs: int) -> tuple[list[str], list[str]]:
    """How long each call took on each engine, and what became of the goal."""
    rows = [["call", *(f"{engine}, {what} ms" for engine in found for what in ("median", "worst"))]]
    for looks in zip(*found.values(), strict=True):
        rows.append([looks[0].call, *(f"{ms:.1f}" for one in looks for ms in (one.median_ms, one.worst_ms))])
    goals = []
    for engine, looks_of in found.items():
        slowest = max(looks_of, key=lambda one: one.worst_ms)
        met = "met" if slowest.worst_ms < CALL_MS_MAX else "NOT MET"
        goals.append(f"- {met}: {engine}, {jobs:,} jobs listed, counted and explained: each call under "
                     f"{CALL_MS_MAX} ms; the slowest took {slowest.worst_ms:.1f} ms ({slowest.call})")  # fmt: skip
    return markdown_table(rows, text_columns=(0,)), goals


def table(engine: str, found: dict[str, list[RunResult]]) -> tuple[list[str], list[str]]:
    """A table for one engine, and what became of the goals."""
    one = statistics.median(run.jobs_per_second for run in found["one"])
    rows = [["queue", "jobs/s", "lowest–highest", "× of one tenant", f"least of {2 * TENANTS:,} starts"]]
    goals = []
    for scene in SCENES:
        rates = sorted(run.jobs_per_second for run in found[scene.name])
        ratio = statistics.median(rates) / one
        least = min(run.least_share for run in found[scene.name])
        spread = f"{rates[0]:,.0f}–{rates[-1]:,.0f}"
        share = f"{least}" if scene.tenants > 1 else "–"
        rows.append([scene.title, f"{statistics.median(rates):,.0f}", spread, f"{ratio:.2f} ×", share])
        if scene.name != "one":
            goals.append(f"- {'met' if ratio >= GOAL else 'NOT MET'}: {engine}, {scene.title}: "
                         f"at least {GOAL} × of one tenant; found {ratio:.2f} ×")  # fmt: skip
        if scene.tenants > 1:
            fair = least >= 1
            goals.append(f"- {'met' if fair else 'NOT MET'}: {engine}: each of {TENANTS:,} tenants with work starts "
                         f"in every {2 * TENANTS:,} starts; the least was {least}")  # fmt: skip
    return markdown_table(rows, text_columns=(0,)), goals


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fair", description=ABOUT)
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"jobs of each run (default {JOBS:,})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"measured runs of each row (default {ROUNDS})")
    parser.add_argument(
        "--many", type=int, default=MANY_JOBS, help=f"jobs of the large store (default {MANY_JOBS:,}), or 0"
    )
    parser.add_argument("--only", choices=tuple(WAYS), help="one engine only")
    parser.add_argument("--keep", action="store_true", help=f"write to {RESULTS.name}")
    wanted = parser.parse_args(arguments)
    folder = bench_folder()
    began, machine = time.monotonic(), describe(folder)
    lines, goals = [f"## Many tenants and limits: {machine.when}, revision {machine.revision}", "", *machine.lines], []
    with serving(folder.resolve()) as server:
        lines.append(f"{server.describe()}; fdatasync of a 4 KiB page: {sync_micros(folder):.0f} µs")
        lines += [
            "",
            f"{wanted.jobs:,} jobs of about 200 bytes, medians of {wanted.rounds} runs, each a process of its own.",
        ]
        engines = (wanted.only,) if wanted.only else tuple(WAYS)
        for engine in engines if wanted.rounds else ():
            found: dict[str, list[RunResult]] = {scene.name: [] for scene in SCENES}
            for _ in range(wanted.rounds):  # In turns, so that what slows the machine slows all.
                for scene in SCENES:
                    figures = run_once(engine, scene, server, folder, wanted.jobs)
                    found[scene.name].append(figures)
                    print(f"  {engine}, {scene.title}: {figures.jobs_per_second:,.0f} jobs/s", flush=True)
            rows, reached = table(engine, found)
            lines += ["", f"### {engine}", "", *rows]
            goals += reached
        if wanted.many:
            rows, reached = table_of_looks({e: look(e, server, folder, wanted.many) for e in engines}, wanted.many)
            lines += ["", f"### {wanted.many:,} jobs of one tenant, a tenth of them waiting", "", *rows]
            goals += reached
    lines += ["", "### Goals of many tenants and limits", "", *goals]
    lines.insert(3, f"{(time.monotonic() - began) / 60:.0f} min")
    text = "\n".join(lines)
    print(f"\n{text}")
    if wanted.keep:
        append_report(text, RESULTS)
        print(f"Kept in benchmarks/{RESULTS.name}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
