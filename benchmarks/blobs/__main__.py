"""The command: measure all parts, print the report, and append it to the results."""

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

ABOUT: Final = "Compare blobs with nginx, a copy with fsync, one file per blob, and boto3."


class RunSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of runs. `runs` and `seconds` are for measurements that need their own server."""

    rounds: int = 15
    runs: int = 3
    seconds: float = 4.0


QUICK: Final = RunSizes(rounds=3, runs=1, seconds=1.0)


class BlobBenchmark:
    """A benchmark run on a folder of the measured disk, and its results."""

    def __init__(self, folder: Path, sizes: RunSizes) -> None:
        self._folder, self._sizes = folder, sizes
        self.measurements = Measurements()
        self.skipped: list[str] = []
        self.others_shares: list[float] = []

    def run(self, part: str) -> None:
        """Measure one part with a new client process."""
        other_load, seconds_before = OtherLoad(), self.measurements.servers_seconds
        try:
            with started() as self._client:
                PARTS[part](self)
        except MissingDependency as error:
            self.skipped.append(f"- {part} was skipped: {error}")
        servers_share = (self.measurements.servers_seconds - seconds_before) / other_load.seconds
        self.others_shares.append(max(0.0, other_load.share() - servers_share))

    @contextmanager
    def _temporary_folder(self) -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def get(self) -> None:
        """Measure downloads of 64 MiB."""
        with self._temporary_folder() as folder, ingot_server.serving(folder) as server:
            large_blobs.measure_downloads(self._client, server, folder, self.measurements, self._sizes.rounds)

    def put(self) -> None:
        """Measure uploads of 64 MiB."""
        with self._temporary_folder() as folder, ingot_server.serving(folder) as server:
            large_blobs.measure_uploads(self._client, server, folder, self.measurements, self._sizes.rounds)

    def small(self) -> None:
        """Measure uploads of 1 KiB, many at a time."""
        with serving(self._folder) as postgres:
            environment = RunEnvironment(postgres, self._folder)
            for _ in range(self._sizes.runs):
                with self._temporary_folder() as folder:
                    self.measurements.record("files", small_blobs.files(folder, self._sizes.seconds).per_second)
                    self.measurements.record("small inside", small_blobs.inside(folder, self._sizes.seconds).per_second)
                for name, on_postgres in (("small sqlite", False), ("small postgres", True)):
                    with (
                        self._temporary_folder() as folder,
                        environment.ingot_server(folder, on_postgres=on_postgres) as (server, _),
                    ):
                        self.measurements.record(name, small_blobs.puts(server, self._sizes.seconds).per_second)
            self.measurements.servers_seconds += environment.cpu_seconds()

    def memory(self) -> None:
        """Measure the memory for a blob of 1 GiB."""
        for _ in range(self._sizes.runs):
            with self._temporary_folder() as folder, ingot_server.serving(folder) as server:
                memory_growth.measure_growth(self._client, server, folder, self.measurements)

    def listing(self) -> None:
        """Measure pages of keys."""
        with self._temporary_folder() as folder:
            listing.compare(self._client, folder, self.measurements, self._sizes.rounds)

    def bucket(self) -> None:
        """Measure uploads to and downloads from a bucket."""
        with self._temporary_folder() as folder:
            bucket.compare(self._client, folder, self.measurements, max(3, self._sizes.rounds // 3))


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
    parser.add_argument(
        "--quick", action="store_true", help="run a smoke test of about a minute, without meaningful numbers"
    )
    parser.add_argument(
        "--only", action="append", choices=tuple(PARTS), metavar="NAME",
        help=f"part to measure; can be repeated: {', '.join(PARTS)}",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, help=f"number of rounds (default: {RunSizes().rounds})")
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
    benchmark = BlobBenchmark(folder, sizes)
    for part in options.only or PARTS:
        print(f"  {part} ...", flush=True)
        benchmark.run(part)
    lines = [f"## Blobs: {machine.when}, revision {machine.revision}", "", *machine.lines, f"nginx {nginx_version()}"]
    lines.append(
        f"fdatasync of a 4 KiB page: {sync_before:.0f} µs before, {sync_micros(folder):.0f} µs after; "
        f"{(time.monotonic() - began) / 60:.0f} min"
    )
    lines += [other_load_line(benchmark.others_shares), "", *benchmark.skipped]
    lines += [
        f"Medians of {sizes.rounds} rounds, or of {sizes.runs} if each needs its own server. Ratios are medians of the"
    ]
    lines += ["ratios within a round.", "", *render(benchmark.measurements)]
    text = "\n".join(lines)
    print(f"\n{text}")
    if not options.keep and (options.quick or options.only or count_disturbed(benchmark.others_shares)):
        print(f"Not appended to benchmarks/{RESULTS.name}: the run was partial or disturbed. --keep appends it anyway.")
    else:
        append_report(text, RESULTS)
        print(f"Appended to benchmarks/{RESULTS.name}.")
    return 0


def nginx_version() -> str:
    """Return the version of the installed nginx, or the reason why it cannot be used."""
    try:
        return nginx.version()
    except MissingDependency as error:
        return str(error)


if __name__ == "__main__":
    sys.exit(main())
