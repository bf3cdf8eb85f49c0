"""The command: run all scenarios in turn, print the report, and append it to the results."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.queue.folders import RESULTS, bench_folder
from benchmarks.queue.machine import describe, sync_micros
from benchmarks.queue.report import append_report, markdown_table
from benchmarks.server.benchmark_server import BenchmarkServer
from benchmarks.server.load import LoadRequest, LoadResult
from benchmarks.server.processes import (
    MeasuredProcess,
    engine_alone,
    following,
    read_frame_counts,
    run_load,
    running_server,
    started,
)

ABOUT: Final = "Compare the server with a route that does nothing, the engine without a server, and a bare broadcast."
ROUNDS: Final = 3
CLIENTS: Final = 1000
EVENTS_PER_SECOND: Final = 20
WATCH_SECONDS: Final = 10
BATCH_JOBS: Final = 40_000
BATCH_CALLERS: Final = 4
DATA_BYTES: Final = 300

Measurements = dict[str, list[float]]


def requests(folder: Path, measurements: Measurements, seconds: float) -> None:
    """Measure a route that does nothing, durable single enqueues, and the same beside many streams."""
    with running_server(folder) as (_, server):
        noop = LoadRequest(port=server.port, token=server.tokens[0], what="noop", seconds=seconds)
        post = msgspec.structs.replace(noop, what="post")
        record(measurements, "noop", run_load(noop))
        record(measurements, "post", run_load(post))
        ticks = LoadRequest(
            port=server.port,
            token=server.tokens[1],
            what="tick",
            seconds=60,
            jobs=60 * EVENTS_PER_SECOND,
            connections=1,
        )
        with (
            following(LoadRequest(port=server.port, token=server.tokens[1], what="stream", connections=CLIENTS)),
            started("load", msgspec.json.encode(ticks).decode()),
        ):
            record(measurements, "post beside streams", run_load(post))


def batches(folder: Path, measurements: Measurements) -> None:
    """Measure claims and settles of batches, over HTTP and without a server."""
    engine_result = engine_alone(folder, BATCH_JOBS, BATCH_CALLERS)
    measurements["engine"].append(engine_result.per_second)
    with running_server(folder) as (_, server):
        load = LoadRequest(
            port=server.port, token=server.tokens[0], what="work", connections=BATCH_CALLERS, jobs=BATCH_JOBS
        )
        measurements["batches"].append(run_load(load).per_second)


def streams(folder: Path, measurements: Measurements) -> None:
    """Measure many streams of a steady rate of events, and bare broadcasts of the same."""
    for module in ("bare_broadcast", "bare_asgi"):
        with started(module, str(EVENTS_PER_SECOND), str(DATA_BYTES)) as bare:
            load = LoadRequest(port=int(bare.line()), token="none", what="stream", connections=CLIENTS)
            with following(load):
                measurements[f"{module} cpu"].append(cpu_share(bare))
    with running_server(folder) as (process, server):
        before = process.resident_bytes()
        load = LoadRequest(port=server.port, token=server.tokens[1], what="stream", connections=CLIENTS)
        with following(load) as followers:
            measurements["client bytes"].append((process.resident_bytes() - before) / CLIENTS)
            ticks = publish(server)
            measurements["stream cpu"].append(cpu_share(process))
            ticks.wait(60)
            time.sleep(1)
            counts = read_frame_counts(followers)
        expected_frames = EVENTS_PER_SECOND * (WATCH_SECONDS + 2)
        measurements["delivered"].append(counts.frames / (expected_frames * CLIENTS))
        measurements["least delivered"].append(counts.fewest / expected_frames)


def publish(server: BenchmarkServer) -> subprocess.Popen[str]:
    """Publish events at a steady rate, for slightly longer than the measurement."""
    seconds = WATCH_SECONDS + 2
    load = LoadRequest(
        port=server.port,
        token=server.tokens[1],
        what="tick",
        seconds=seconds,
        jobs=seconds * EVENTS_PER_SECOND,
        connections=1,
    )
    command = [sys.executable, "-m", "benchmarks.server.load", msgspec.json.encode(load).decode()]
    publisher = subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True)
    time.sleep(1)  # Wait until it has started.
    return publisher


def waiting(folder: Path, measurements: Measurements) -> None:
    """Measure many claims that wait for jobs of a type that has none."""
    with running_server(folder) as (process, server):
        load = LoadRequest(port=server.port, token=server.tokens[0], what="claim", connections=CLIENTS)
        with following(load):
            time.sleep(1)
            measurements["waiting cpu"].append(cpu_share(process))


def cpu_share(process: MeasuredProcess) -> float:
    """Measure which share of a core a process uses."""
    before, began = process.cpu_seconds(), time.monotonic()
    time.sleep(WATCH_SECONDS)
    return (process.cpu_seconds() - before) / (time.monotonic() - began)


def record(measurements: Measurements, name: str, result: LoadResult) -> None:
    """Record the result of one run, and print it."""
    for suffix, value in (("", result.per_second), (" p50", result.p50_ms), (" p99", result.p99_ms)):
        measurements[name + suffix].append(value)
    print(f"  {name}: {result.per_second:,.0f}/s, p99 {result.p99_ms:.1f} ms", flush=True)


def report(measurements: Measurements) -> list[str]:
    """Return the tables, and which goals are met."""
    medians = {name: statistics.median(values) for name, values in measurements.items()}

    def row(title: str, name: str, baseline: str) -> list[str]:
        low, high = min(measurements[name]), max(measurements[name])
        percentiles = [
            f"{medians[f'{name} {percentile}']:.2f}" if f"{name} p50" in measurements else "–"
            for percentile in ("p50", "p99")
        ]
        ratio = f"{medians[name] / medians[baseline]:.2f} ×"
        return [title, f"{medians[name]:,.0f}", f"{low:,.0f}–{high:,.0f}", *percentiles, ratio]

    rows = [
        ["32 connections, SQLite", "requests/s", "lowest–highest", "p50 ms", "p99 ms", "ratio"],
        row("route that does nothing", "noop", "noop"),
        row("POST /jobs, one durable job", "post", "noop"),
        row(f"the same beside {CLIENTS:,} streams", "post beside streams", "noop"),
    ]
    lines = markdown_table(rows, text_columns=(0,))
    rows = [
        [f"claim and settle, batches of 100, {BATCH_CALLERS} callers", "jobs/s", "lowest–highest", "ratio"],
        *([cells[0], cells[1], cells[2], cells[5]] for cells in [row("the engine alone", "engine", "engine")]),
        *([cells[0], cells[1], cells[2], cells[5]] for cells in [row("over HTTP", "batches", "engine")]),
    ]
    lines += ["", *markdown_table(rows, text_columns=(0,))]
    rows = [
        [f"{CLIENTS:,} clients", "share of a core", "ratio", "delivered", "KiB per client"],
        ["bare broadcast", f"{medians['bare_broadcast cpu']:.1%}", "1.00 ×", "–", "–"],
        [
            "bare broadcast over the same HTTP server",
            f"{medians['bare_asgi cpu']:.1%}",
            f"{medians['bare_asgi cpu'] / medians['bare_broadcast cpu']:.2f} ×",
            "–",
            "–",
        ],
        [
            f"streams, {EVENTS_PER_SECOND} events/s",
            f"{medians['stream cpu']:.1%}",
            f"{medians['stream cpu'] / medians['bare_broadcast cpu']:.2f} ×",
            f"{min(measurements['least delivered']):.0%}",
            f"{medians['client bytes'] / 1024:.0f}",
        ],
        ["waiting claims", f"{medians['waiting cpu']:.1%}", "–", "–", "–"],
    ]
    lines += ["", *markdown_table(rows, text_columns=(0,)), "", "### Goals of the server", ""]
    ratios = [
        ("POST /jobs at least 0.55 × a route that does nothing", medians["post"] / medians["noop"], 0.55, 1),
        (
            f"the same beside {CLIENTS:,} streams at least 0.3 ×",
            medians["post beside streams"] / medians["noop"],
            0.3,
            1,
        ),
        ("batches over HTTP at least 0.5 × the engine alone", medians["batches"] / medians["engine"], 0.5, 1),
        (
            f"{CLIENTS:,} streams at most 1.5 × a bare broadcast",
            medians["stream cpu"] / medians["bare_broadcast cpu"],
            1.5,
            -1,
        ),
        (
            f"{CLIENTS:,} streams at most 1.5 × one over the same HTTP server",
            medians["stream cpu"] / medians["bare_asgi cpu"],
            1.5,
            -1,
        ),
    ]
    for title, ratio, goal, sign in ratios:
        lines.append(f"- {'met' if sign * ratio >= sign * goal else 'NOT MET'}: {title}; measured {ratio:.2f} ×")
    for title, value, met in (
        (
            "every event delivered to every client",
            min(measurements["least delivered"]),
            min(measurements["least delivered"]) >= 1,
        ),
        (f"{CLIENTS:,} waiting claims below 2 % of a core", medians["waiting cpu"], medians["waiting cpu"] < 0.02),
    ):
        lines.append(f"- {'met' if met else 'NOT MET'}: {title}; measured {value:.1%}")
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.server", description=ABOUT)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"number of runs of each row (default: {ROUNDS})")
    parser.add_argument("--seconds", type=float, default=5, help="measured seconds of each run (default: 5)")
    parser.add_argument("--keep", action="store_true", help=f"append the report to {RESULTS.name}")
    options = parser.parse_args(arguments)
    folder = bench_folder()
    began, machine = time.monotonic(), describe(folder)
    measurements: Measurements = defaultdict(list)
    for _ in range(options.rounds):  # In turn, so that a slow minute of the machine affects all.
        requests(folder, measurements, options.seconds)
        batches(folder, measurements)
        streams(folder, measurements)
        waiting(folder, measurements)
    lines = [f"## The server: {machine.when}, revision {machine.revision}", "", *machine.lines]
    lines.append(f"fdatasync of a 4 KiB page: {sync_micros(folder):.0f} µs; {(time.monotonic() - began) / 60:.0f} min")
    lines += [
        "",
        f"Medians of {options.rounds} runs; the load comes from a separate process. Ratios are those to the first row.",
        "",
        *report(measurements),
    ]
    text = "\n".join(lines)
    print(f"\n{text}")
    if options.keep:
        append_report(text, RESULTS)
        print(f"Appended to benchmarks/{RESULTS.name}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
