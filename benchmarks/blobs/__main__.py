"""The command: run every part in turns, print the ratios, keep the results."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.blobs import bucket, large_blobs, listing, memory_growth, nginx, small_blobs
from benchmarks.blobs.client_process import started
from benchmarks.blobs.measurements import Measurements
from benchmarks.blobs.report import render
from benchmarks.postgres.server import serving
from benchmarks.queue.adapter import MissingDependency
from benchmarks.queue.folders import RESULTS, bench_folder
from benchmarks.queue.machine import describe, sync_micros
from benchmarks.queue.other_load import OtherLoad
from benchmarks.queue.report import append_report, count_disturbed, other_load_line
from benchmarks.worker import ingot_server
from benchmarks.worker.run_environment import RunEnvironment

ABOUT: Final = "Measure blobs beside nginx, a copy with fsync, a file for each blob, and boto3."


class RunSizes(msgspec.Struct, frozen=True, kw_only=True):
    """How often each is measured, and for how long where it is counted. `runs` are of what has a server of its own."""

    rounds: int = 15
    runs: int = 3
    seconds: float = 4.0


QUICK: Final = RunSizes(rounds=3, runs=1, seconds=1.0)


class BlobBenchmark:
    """One run: a folder on the disk that is measured, and what was found."""

    def __init__(self, folder: Path, sizes: RunSizes) -> None:
        self._folder, self._sizes = folder, sizes
        self.found = Measurements()
        self.left_out: list[str] = []
        self.others_shares: list[float] = []

    def run(self, part: str) -> None:
        """Measure one part, with a process of its own that asks."""
        others, before = OtherLoad(), self.found.servers_seconds
        try:
            with started() as self._client:
                PARTS[part](self)
        except MissingDependency as error:
            self.left_out.append(f"- {part} is left out: {error}")
        used = (self.found.servers_seconds - before) / others.seconds
        self.others_shares.append(max(0.0, others.share() - used))

    @contextmanager
    def _place(self) -> Iterator[Path]:
        place = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def get(self) -> None:
        """64 MiB out."""
        with self._place() as place, ingot_server.serving(place) as running:
            large_blobs.out(self._client, running, place, self.found, self._sizes.rounds)

    def put(self) -> None:
        """64 MiB in."""
        with self._place() as place, ingot_server.serving(place) as running:
            large_blobs.into(self._client, running, place, self.found, self._sizes.rounds)

    def small(self) -> None:
        """1 KiB in, many at once."""
        with serving(self._folder) as postgres:
            grounds = RunEnvironment(postgres, self._folder)
            for _ in range(self._sizes.runs):
                with self._place() as place:
                    self.found.note("files", small_blobs.files(place, self._sizes.seconds).per_second)
                    self.found.note("small inside", small_blobs.inside(place, self._sizes.seconds).per_second)
                for name, on_postgres in (("small sqlite", False), ("small postgres", True)):
                    with self._place() as place, grounds.ingot_server(place, on_postgres=on_postgres) as (running, _):
                        self.found.note(name, small_blobs.puts(running, self._sizes.seconds).per_second)
            self.found.servers_seconds += grounds.cpu_seconds()

    def memory(self) -> None:
        """1 GiB in and out."""
        for _ in range(self._sizes.runs):
            with self._place() as place, ingot_server.serving(place) as running:
                memory_growth.grown(self._client, running, place, self.found)

    def listing(self) -> None:
        """Pages of keys."""
        with self._place() as place:
            listing.compare(self._client, place, self.found, self._sizes.rounds)

    def bucket(self) -> None:
        """64 MiB in and out of a bucket."""
        with self._place() as place:
            bucket.compare(self._client, place, self.found, max(3, self._sizes.rounds // 3))


PARTS: Final[dict[str, Callable[[BlobBenchmark], None]]] = {
    "get": BlobBenchmark.get,
    "put": BlobBenchmark.put,
    "small": BlobBenchmark.small,
    "memory": BlobBenchmark.memory,
    "listing": BlobBenchmark.listing,
    "bucket": BlobBenchmark.bucket,
}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.blobs", description=ABOUT)
    parser.add_argument("--quick", action="store_true", help="a smoke run of about a minute; figures mean little")
    parser.add_argument(
        "--only", action="append", choices=tuple(PARTS), metavar="NAME",
        help=f"only this part; may be repeated: {', '.join(PARTS)}",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, help=f"turns of each row (default {RunSizes().rounds})")
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
    bench = BlobBenchmark(folder, sizes)
    for part in wanted.only or PARTS:
        print(f"  {part} ...", flush=True)
        bench.run(part)
    lines = [f"## Blobs: {machine.when}, revision {machine.revision}", "", *machine.lines, f"nginx {nginx_version()}"]
    lines.append(
        f"fdatasync of a 4 KiB page: {sync_before:.0f} µs before, {sync_micros(folder):.0f} µs after; "
        f"{(time.monotonic() - began) / 60:.0f} min"
    )
    lines += [other_load_line(bench.others_shares), "", *bench.left_out]
    lines += [
        f"Medians of {sizes.rounds} turns, of {sizes.runs} where each has a server of its own; ratios are medians"
    ]
    lines += ["of what the two of one turn are to each other.", "", *render(bench.found)]
    text = "\n".join(lines)
    print(f"\n{text}")
    if not wanted.keep and (wanted.quick or wanted.only or count_disturbed(bench.others_shares)):
        print(f"Not kept in benchmarks/{RESULTS.name}: part of a run, or disturbed. --keep keeps it all the same.")
    else:
        append_report(text, RESULTS)
        print(f"Kept in benchmarks/{RESULTS.name}.")
    return 0


def nginx_version() -> str:
    """The version of the nginx that is there, if any."""
    try:
        return nginx.version()
    except MissingDependency as error:
        return str(error)


if __name__ == "__main__":
    sys.exit(main())
