"""The command: measure all systems in turn, then the cost of workers, and print and store the report."""

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
from benchmarks.queue.report import append_report, count_disturbed
from benchmarks.worker import redis
from benchmarks.worker.adapter import Row, RunRequest, RunResult
from benchmarks.worker.report import Report
from benchmarks.worker.run_environment import RunEnvironment
from benchmarks.worker.runs import RunFailed, run
from benchmarks.worker.server_cost import (
    IDLE_WORKERS,
    NO_WORKERS,
    ONE_WORKER,
    TEN_WORKERS,
    ServerCost,
    measure_costs,
    statement_counting_settings,
)
from benchmarks.worker.systems import MODULES, ROWS, load

ABOUT: Final = (
    "Compare a worker process of Ingot with those of its peers: throughput, latency, and the cost of many workers."
)
ROUNDS: Final = 3
SAMPLES: Final = 300
STEADY_SECONDS: Final = 2.0
BACKLOG_JOBS: Final = 2_000
BACKLOG_SHARE: Final = 4
IDLE_SECONDS: Final = 40.0
RUNNING_SECONDS: Final = 40.0  # Longer than the heartbeat interval.
COSTS: Final = "costs"


class RunSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of runs. `share` is a share of the jobs of each system, `costs_share` of the time of costs."""

    rounds: int = ROUNDS
    samples: int = SAMPLES
    steady_seconds: float = STEADY_SECONDS
    share: float = 1.0
    costs_share: float = 1.0


QUICK: Final = RunSizes(rounds=1, samples=30, steady_seconds=0.5, share=0.1, costs_share=0.35)


def run_once(environment: RunEnvironment, row: Row, sizes: RunSizes, *, sampled: bool) -> RunResult:
    """Run a row once, with latencies if `sampled`. Raises `RunFailed`."""
    jobs = max(100, int(load(row.system).jobs * row.share * sizes.share))
    other_load, cpu_seconds_before = OtherLoad(), environment.cpu_seconds()
    with environment.folder() as folder, environment.system_address(row, folder) as address:
        request = RunRequest(
            system=row.system,
            address=address,
            start_times=str(folder / "start_times"),
            jobs=jobs,
            steady_seconds=sizes.steady_seconds,
            backlog_jobs=min(BACKLOG_JOBS, jobs // BACKLOG_SHARE),
            samples=sizes.samples if sampled and row.latency else 0,
        )
        result = run(request)
    postgres_share = (environment.cpu_seconds() - cpu_seconds_before) / other_load.seconds
    result.others_share = max(0.0, other_load.share() - postgres_share)
    return result


def measure(
    environment: RunEnvironment, rows: list[Row], sizes: RunSizes
) -> tuple[dict[Row, list[RunResult]], dict[Row, str]]:
    """Measure all rows in turn, so that a slow minute of the machine affects all of them.

    Return the results, and the reasons for the rows that were skipped.
    """
    results: dict[Row, list[RunResult]] = {row: [] for row in rows}
    skipped: dict[Row, str] = {}
    for round_number in range(sizes.rounds):
        for row in rows:
            if row in skipped:
                continue
            try:
                result = run_once(environment, row, sizes, sampled=round_number == 0)
            except (MissingDependency, RunFailed) as error:
                skipped[row] = str(error)
                print(f"  {row.title}: {error}", flush=True)
                continue
            results[row].append(result)
            tail = f", steady {result.steady_rate:,.0f}/s, start {result.start_seconds:.2f} s"
            print(f"  {row.title} ({row.durable}): {result.rate:,.0f} jobs/s{tail}", flush=True)
    return results, skipped


def measure_all_costs(folder: Path, sizes: RunSizes) -> list[ServerCost]:
    """Measure the cost of idle workers, then of running jobs, with a PostgreSQL server that counts statements."""
    with serving(folder, more=statement_counting_settings()) as postgres:
        environment = RunEnvironment(postgres, folder)
        print("  200 idle workers ...", flush=True)
        idle_costs = measure_costs(environment, [NO_WORKERS, IDLE_WORKERS], IDLE_SECONDS * sizes.costs_share)
        print("  1,000 running jobs ...", flush=True)
        groups = [ONE_WORKER, TEN_WORKERS]
        return [*idle_costs, *measure_costs(environment, groups, RUNNING_SECONDS * sizes.costs_share)]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worker", description=ABOUT)
    parser.add_argument(
        "--quick", action="store_true", help="run a smoke test of about two minutes, without meaningful numbers"
    )
    parser.add_argument(
        "--only", action="append", choices=(*MODULES, COSTS), metavar="NAME",
        help=f"system or part to measure; can be repeated: {', '.join((*MODULES, COSTS))}",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, help=f"number of measured runs of each row (default: {ROUNDS})")
    parser.add_argument(
        "--keep",
        action="store_true",
        help=f"append the report to {RESULTS.name} even if the run was partial or disturbed",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # Stop the servers before this process ends.
    options = parse(arguments)
    sizes = QUICK if options.quick else RunSizes()
    if options.rounds:
        sizes = msgspec.structs.replace(sizes, rounds=options.rounds)
    folder = bench_folder().resolve()
    began, machine, sync_before = time.monotonic(), describe(folder), sync_micros(folder)
    rows = [row for row in ROWS if not options.only or row.system in options.only]
    with serving(folder) as postgres:
        servers = f"{postgres.describe()}; Redis {redis_version()}"
        print(servers, flush=True)
        results, skipped = measure(RunEnvironment(postgres, folder), rows, sizes)
    costs = measure_all_costs(folder, sizes) if not options.only or COSTS in options.only else []
    report = Report(
        machine=machine,
        servers=servers,
        sync_micros=(sync_before, sync_micros(folder)),
        results=results,
        skipped=skipped,
        costs=costs,
        minutes=(time.monotonic() - began) / 60,
    )
    print(f"\n{report.markdown()}")
    shares = [run.others_share for runs in results.values() for run in runs]
    if not options.keep and (options.quick or options.only or count_disturbed(shares)):
        print(f"Not appended to benchmarks/{RESULTS.name}: the run was partial or disturbed. --keep appends it anyway.")
    else:
        append_report(report.markdown(), RESULTS)
        print(f"Appended to benchmarks/{RESULTS.name}.")
    return 0


def redis_version() -> str:
    """Return the version of the installed Redis server, or the reason why it cannot be used."""
    try:
        return redis.version()
    except MissingDependency as error:
        return str(error)


if __name__ == "__main__":
    sys.exit(main())
