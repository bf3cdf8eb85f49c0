"""The command: run every scene in turns, print the ratios, keep the results."""

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
from benchmarks.server.processes import MeasuredProcess, ask, engine_alone, following, heard, site, started

ABOUT: Final = "Measure the server beside a route that does nothing, the engine alone, and a bare broadcast."
ROUNDS: Final = 3
CLIENTS: Final = 1000
EVENTS_PER_SECOND: Final = 20
WATCH_SECONDS: Final = 10
BATCH_JOBS: Final = 40_000
BATCH_CALLERS: Final = 4
DATA_BYTES: Final = 300

Found = dict[str, list[float]]


def requests(folder: Path, found: Found, seconds: float) -> None:
    """A route that does nothing, and durable single enqueues; then the same beside many who follow."""
    with site(folder) as (_, at):
        noop = LoadRequest(port=at.port, token=at.tokens[0], what="noop", seconds=seconds)
        post = msgspec.structs.replace(noop, what="post")
        note(found, "noop", ask(noop))
        note(found, "post", ask(post))
        ticks = LoadRequest(
            port=at.port, token=at.tokens[1], what="tick", seconds=60, jobs=60 * EVENTS_PER_SECOND, connections=1
        )
        with (
            following(LoadRequest(port=at.port, token=at.tokens[1], what="stream", connections=CLIENTS)),
            started("load", msgspec.json.encode(ticks).decode()),
        ):
            note(found, "post beside streams", ask(post))


def batches(folder: Path, found: Found) -> None:
    """Claims and settles of batches, over HTTP and without a server."""
    alone = engine_alone(folder, BATCH_JOBS, BATCH_CALLERS)
    found["engine"].append(alone.per_second)
    with site(folder) as (_, at):
        order = LoadRequest(port=at.port, token=at.tokens[0], what="work", connections=BATCH_CALLERS, jobs=BATCH_JOBS)
        found["batches"].append(ask(order).per_second)


def streams(folder: Path, found: Found) -> None:
    """Many who follow a steady stream, beside a bare broadcast of the same."""
    for module in ("bare_broadcast", "bare_asgi"):
        with started(module, str(EVENTS_PER_SECOND), str(DATA_BYTES)) as bare:
            order = LoadRequest(port=int(bare.line()), token="none", what="stream", connections=CLIENTS)
            with following(order):
                found[f"{module} cpu"].append(cpu_share(bare))
    with site(folder) as (server, at):
        before = server.resident_bytes()
        order = LoadRequest(port=at.port, token=at.tokens[1], what="stream", connections=CLIENTS)
        with following(order) as followers:
            found["client bytes"].append((server.resident_bytes() - before) / CLIENTS)
            ticks = publish(at)
            found["stream cpu"].append(cpu_share(server))
            ticks.wait(60)
            time.sleep(1)
            told = heard(followers)
        due = EVENTS_PER_SECOND * (WATCH_SECONDS + 2)
        found["delivered"].append(told.frames / (due * CLIENTS))
        found["least delivered"].append(told.least / due)


def publish(at: BenchmarkServer) -> subprocess.Popen[str]:
    """Events at a steady rate, for a little longer than is watched."""
    seconds = WATCH_SECONDS + 2
    order = LoadRequest(
        port=at.port,
        token=at.tokens[1],
        what="tick",
        seconds=seconds,
        jobs=seconds * EVENTS_PER_SECOND,
        connections=1,
    )
    command = [sys.executable, "-m", "benchmarks.server.load", msgspec.json.encode(order).decode()]
    ticking = subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True)
    time.sleep(1)  # Until it has begun.
    return ticking


def waiting(folder: Path, found: Found) -> None:
    """Many claims that wait for work that does not come."""
    with site(folder) as (server, at):
        order = LoadRequest(port=at.port, token=at.tokens[0], what="claim", connections=CLIENTS)
        with following(order):
            time.sleep(1)
            found["waiting cpu"].append(cpu_share(server))


def cpu_share(process: MeasuredProcess) -> float:
    """The share of a core that a process uses for a while."""
    before, began = process.cpu_seconds(), time.monotonic()
    time.sleep(WATCH_SECONDS)
    return (process.cpu_seconds() - before) / (time.monotonic() - began)


def note(found: Found, name: str, figures: LoadResult) -> None:
    """Keep the figures of one run, and say them."""
    for part, value in (("", figures.per_second), (" p50", figures.p50_ms), (" p99", figures.p99_ms)):
        found[name + part].append(value)
    print(f"  {name}: {figures.per_second:,.0f}/s, p99 {figures.p99_ms:.1f} ms", flush=True)


def report(found: Found) -> list[str]:
    """Tables, and what became of the goals."""
    middle = {name: statistics.median(values) for name, values in found.items()}

    def row(title: str, name: str, beside: str) -> list[str]:
        low, high = min(found[name]), max(found[name])
        percentiles = [f"{middle[f'{name} {one}']:.2f}" if f"{name} p50" in found else "–" for one in ("p50", "p99")]
        ratio = f"{middle[name] / middle[beside]:.2f} ×"
        return [title, f"{middle[name]:,.0f}", f"{low:,.0f}–{high:,.0f}", *percentiles, ratio]

    rows = [
        ["32 connections, SQLite", "requests/s", "lowest–highest", "p50 ms", "p99 ms", "× of beside"],
        row("a route that does nothing", "noop", "noop"),
        row("POST /jobs, one durable job", "post", "noop"),
        row(f"the same beside {CLIENTS:,} streams", "post beside streams", "noop"),
    ]
    lines = markdown_table(rows, text_columns=(0,))
    rows = [
        [f"claim and settle, batches of 100, {BATCH_CALLERS} callers", "jobs/s", "lowest–highest", "× of the engine"],
        *([cells[0], cells[1], cells[2], cells[5]] for cells in [row("the engine alone", "engine", "engine")]),
        *([cells[0], cells[1], cells[2], cells[5]] for cells in [row("over HTTP", "batches", "engine")]),
    ]
    lines += ["", *markdown_table(rows, text_columns=(0,))]
    rows = [
        [f"{CLIENTS:,} clients", "share of a core", "× of bare", "delivered", "KiB per client"],
        ["a bare broadcast", f"{middle['bare_broadcast cpu']:.1%}", "1.00 ×", "–", "–"],
        [
            "a bare broadcast over the same HTTP server",
            f"{middle['bare_asgi cpu']:.1%}",
            f"{middle['bare_asgi cpu'] / middle['bare_broadcast cpu']:.2f} ×",
            "–",
            "–",
        ],
        [
            f"streams, {EVENTS_PER_SECOND} events/s",
            f"{middle['stream cpu']:.1%}",
            f"{middle['stream cpu'] / middle['bare_broadcast cpu']:.2f} ×",
            f"{min(found['least delivered']):.0%}",
            f"{middle['client bytes'] / 1024:.0f}",
        ],
        ["claims that wait", f"{middle['waiting cpu']:.1%}", "–", "–", "–"],
    ]
    lines += ["", *markdown_table(rows, text_columns=(0,)), "", "### Goals of the server", ""]
    ratios = [
        ("POST /jobs at least 0.55 × a route that does nothing", middle["post"] / middle["noop"], 0.55, 1),
        (f"the same beside {CLIENTS:,} streams at least 0.3 ×", middle["post beside streams"] / middle["noop"], 0.3, 1),
        ("batches over HTTP at least 0.5 × the engine alone", middle["batches"] / middle["engine"], 0.5, 1),
        (
            f"{CLIENTS:,} streams at most 1.5 × a bare broadcast",
            middle["stream cpu"] / middle["bare_broadcast cpu"],
            1.5,
            -1,
        ),
        (
            f"{CLIENTS:,} streams at most 1.5 × one over the same HTTP server",
            middle["stream cpu"] / middle["bare_asgi cpu"],
            1.5,
            -1,
        ),
    ]
    for title, ratio, goal, sign in ratios:
        lines.append(f"- {'met' if sign * ratio >= sign * goal else 'NOT MET'}: {title}; found {ratio:.2f} ×")
    for title, value, met in (
        ("every event delivered to every client", min(found["least delivered"]), min(found["least delivered"]) >= 1),
        (f"{CLIENTS:,} waiting claims below 2 % of a core", middle["waiting cpu"], middle["waiting cpu"] < 0.02),
    ):
        lines.append(f"- {'met' if met else 'NOT MET'}: {title}; found {value:.1%}")
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.server", description=ABOUT)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"measured runs of each row (default {ROUNDS})")
    parser.add_argument("--seconds", type=float, default=5, help="how long requests are counted in a run (default 5)")
    parser.add_argument("--keep", action="store_true", help=f"write to {RESULTS.name}")
    wanted = parser.parse_args(arguments)
    folder = bench_folder()
    began, machine = time.monotonic(), describe(folder)
    found: Found = defaultdict(list)
    for _ in range(wanted.rounds):  # In turns, so that what slows the machine slows all.
        requests(folder, found, wanted.seconds)
        batches(folder, found)
        streams(folder, found)
        waiting(folder, found)
    lines = [f"## The server: {machine.when}, revision {machine.revision}", "", *machine.lines]
    lines.append(f"fdatasync of a 4 KiB page: {sync_micros(folder):.0f} µs; {(time.monotonic() - began) / 60:.0f} min")
    lines += ["", f"Medians of {wanted.rounds} runs; the load comes from a process of its own.", "", *report(found)]
    text = "\n".join(lines)
    print(f"\n{text}")
    if wanted.keep:
        append_report(text, RESULTS)
        print(f"Kept in benchmarks/{RESULTS.name}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
