"""The command: run every system in turns, then the crowds; print the ratios, keep the results."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.postgres.server import serving
from benchmarks.queue.adapter import MissingDependency
from benchmarks.queue.folders import RESULTS, bench_folder
from benchmarks.queue.machine import describe, sync_micros
from benchmarks.queue.other_load import OtherLoad
from benchmarks.queue.report import disturbed, keep
from benchmarks.worker import redis
from benchmarks.worker.adapter import Row, RunRequest, RunResult
from benchmarks.worker.report import Report
from benchmarks.worker.run_environment import RunEnvironment
from benchmarks.worker.runs import RunFailed, run
from benchmarks.worker.server_cost import IDLE, NOBODY, ONE, TEN, ServerCost, costs, preload
from benchmarks.worker.systems import MODULES, ROWS, load

ABOUT: Final = "Measure a worker process of Ingot beside those of its peers: throughput, latency, and what many cost."
ROUNDS: Final = 3
SAMPLES: Final = 300
STEADY_SECONDS: Final = 2.0
BACKLOG_JOBS: Final = 2_000
BACKLOG_SHARE: Final = 4
IDLE_SECONDS: Final = 40.0
RUNNING_SECONDS: Final = 40.0  # More than from one heartbeat to the next.
CROWDS: Final = "crowds"


class RunSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths of runs; `share` of a system's jobs."""

    rounds: int = ROUNDS
    samples: int = SAMPLES
    steady_seconds: float = STEADY_SECONDS
    share: float = 1.0
    crowd_share: float = 1.0


QUICK: Final = RunSizes(rounds=1, samples=30, steady_seconds=0.5, share=0.1, crowd_share=0.35)


def run_once(grounds: RunEnvironment, row: Row, sizes: RunSizes, *, sampled: bool) -> RunResult:
    """One run in a process of its own. Raises `Failed`."""
    jobs = max(100, int(load(row.system).jobs * row.share * sizes.share))
    others, before = OtherLoad(), grounds.cpu_seconds()
    with grounds.folder() as folder, grounds.place(row, folder) as place:
        order = RunRequest(
            system=row.system,
            place=place,
            notes=str(folder / "notes"),
            jobs=jobs,
            steady_seconds=sizes.steady_seconds,
            backlog_jobs=min(BACKLOG_JOBS, jobs // BACKLOG_SHARE),
            samples=sizes.samples if sampled and row.latency else 0,
        )
        figures = run(order)
    used = (grounds.cpu_seconds() - before) / others.seconds
    figures.others_share = max(0.0, others.share() - used)
    return figures


def measure(
    grounds: RunEnvironment, rows: list[Row], sizes: RunSizes
) -> tuple[dict[Row, list[RunResult]], dict[Row, str]]:
    """In turns, so that what slows the machine slows all. What cannot be had is left out, with the reason."""
    found: dict[Row, list[RunResult]] = {row: [] for row in rows}
    left_out: dict[Row, str] = {}
    for turn in range(sizes.rounds):
        for row in rows:
            if row in left_out:
                continue
            try:
                figures = run_once(grounds, row, sizes, sampled=turn == 0)
            except (MissingDependency, RunFailed) as error:
                left_out[row] = str(error)
                print(f"  {row.title}: {error}", flush=True)
                continue
            found[row].append(figures)
            tail = f", steady {figures.steady_rate:,.0f}/s, start {figures.start_seconds:.2f} s"
            print(f"  {row.title} ({row.durable}): {figures.rate:,.0f} jobs/s{tail}", flush=True)
    return found, left_out


def crowds(folder: Path, sizes: RunSizes) -> list[ServerCost]:
    """Many who wait, then many who run, on a PostgreSQL that counts statements."""
    with serving(folder, more=preload()) as postgres:
        grounds = RunEnvironment(postgres, folder)
        print("  200 idle workers ...", flush=True)
        found = costs(grounds, [NOBODY, IDLE], IDLE_SECONDS * sizes.crowd_share)
        print("  1,000 running jobs ...", flush=True)
        return [*found, *costs(grounds, [ONE, TEN], RUNNING_SECONDS * sizes.crowd_share)]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worker", description=ABOUT)
    parser.add_argument("--quick", action="store_true", help="a smoke run of about two minutes; figures mean little")
    parser.add_argument(
        "--only", action="append", choices=(*MODULES, CROWDS), metavar="NAME",
        help=f"only this system or part; may be repeated: {', '.join((*MODULES, CROWDS))}",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, help=f"measured runs of each row (default {ROUNDS})")
    parser.add_argument("--keep", action="store_true", help=f"write to {RESULTS.name} whatever this run was like")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # The servers must not outlive us.
    wanted = parse(arguments)
    sizes = QUICK if wanted.quick else RunSizes()
    if wanted.rounds:
        sizes = msgspec.structs.replace(sizes, rounds=wanted.rounds)
    folder = bench_folder().resolve()
    began, machine, sync_before = time.monotonic(), describe(folder), sync_micros(folder)
    rows = [row for row in ROWS if not wanted.only or row.system in wanted.only]
    with serving(folder) as postgres:
        servers = f"{postgres.describe()}; Redis {redis_version()}"
        print(servers, flush=True)
        found, left_out = measure(RunEnvironment(postgres, folder), rows, sizes)
    costly = crowds(folder, sizes) if not wanted.only or CROWDS in wanted.only else []
    report = Report(
        machine=machine,
        servers=servers,
        sync_micros=(sync_before, sync_micros(folder)),
        found=found,
        left_out=left_out,
        costs=costly,
        minutes=(time.monotonic() - began) / 60,
    )
    print(f"\n{report.markdown()}")
    shares = [one.others_share for figures in found.values() for one in figures]
    if not wanted.keep and (wanted.quick or wanted.only or disturbed(shares)):
        print(f"Not kept in benchmarks/{RESULTS.name}: part of a run, or disturbed. --keep keeps it all the same.")
    else:
        keep(report.markdown(), RESULTS)
        print(f"Kept in benchmarks/{RESULTS.name}.")
    return 0


def redis_version() -> str:
    """The version of the Redis that is there, if any."""
    try:
        return redis.version()
    except MissingDependency as error:
        return str(error)


if __name__ == "__main__":
    sys.exit(main())
