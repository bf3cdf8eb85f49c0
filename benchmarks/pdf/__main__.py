"""The command: measure all parts, print the report, and append it to the results."""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.blobs.measurements import Measurements
from benchmarks.pdf import corpus
from benchmarks.pdf.end_to_end import ingest, server_with_worker
from benchmarks.pdf.report import render
from benchmarks.pdf.standalone_converters import CONVERTERS, ConversionResult
from benchmarks.queue.folders import REPOSITORY, RESULTS, bench_folder
from benchmarks.queue.machine import describe
from benchmarks.queue.other_load import OtherLoad
from benchmarks.queue.report import append_report, count_disturbed, other_load_line
from benchmarks.worker.ingot_server import serving
from tests.pdf_corpus import corpus as debian_manuals

ABOUT: Final = "Compare the complete conversion of PDFs with converters that run alone."
SLOW: Final = frozenset({"markitdown", "pdfplumber"})  # Measured with fewer files. The result is a rate.


class RunSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of runs."""

    rounds: int = 3
    books: int = 20
    pages: int = 100
    slow_books: int = 2
    leaves: int = 1000


QUICK: Final = RunSizes(rounds=1, books=8, pages=20, slow_books=2, leaves=50)


class PdfBenchmark:
    """A benchmark run on a folder of the measured disk, and its results."""

    def __init__(self, folder: Path, sizes: RunSizes) -> None:
        self._folder, self._sizes = folder, sizes
        self.measurements = Measurements()
        self.others_shares: list[float] = []

    def run(self, part: str) -> None:
        """Measure one part."""
        other_load = OtherLoad()
        PARTS[part](self)
        self.others_shares.append(other_load.share())

    def books(self) -> None:
        """Measure files of many pages, with Ingot and with each converter alone, in turn."""
        sizes = self._sizes
        folder = corpus.books(self._folder / "pdf", count=sizes.books, pages=sizes.pages)
        slow_folder = corpus.books(self._folder / "pdf", count=sizes.slow_books, pages=sizes.pages)
        for _ in range(sizes.rounds):
            for name in CONVERTERS:
                result = run_converter(name, slow_folder if name in SLOW else folder)
                self.measurements.record(
                    "alone" if name == "ours" else name, result.files * sizes.pages / result.seconds
                )
            with self._temporary_folder() as run_folder, server_with_worker(run_folder) as server:
                ingest(server, slow_folder, "--output", str(run_folder / "warm"))
                seconds = ingest(server, folder, "--force", "--output", str(run_folder / "out"))
                self.measurements.record("whole", sizes.books * sizes.pages / seconds)

    def manuals(self) -> None:
        """Measure real PDFs: the manuals of some Debian packages."""
        folder = debian_manuals()
        pages = sum(corpus.pages_of(path) for path in folder.rglob("*.pdf"))
        for _ in range(self._sizes.rounds):
            self.measurements.record("manuals alone", pages / run_converter("ours", folder).seconds)
            with self._temporary_folder() as run_folder, server_with_worker(run_folder) as server:
                self.measurements.record(
                    "manuals whole", pages / ingest(server, folder, "--output", str(run_folder / "out"))
                )

    def leaves(self) -> None:
        """Measure many files of one page."""
        folder = corpus.books(self._folder / "pdf", count=self._sizes.leaves, pages=1)
        for _ in range(self._sizes.rounds):
            with self._temporary_folder() as run_folder, server_with_worker(run_folder) as server:
                self.measurements.record("leaves asked", self._sizes.leaves / ingest(server, folder))
            with self._temporary_folder() as run_folder, serving(run_folder) as server:
                self.measurements.record("leaves stored", self._sizes.leaves / ingest(server, folder))
            with self._temporary_folder() as run_folder, server_with_worker(run_folder) as server:
                self.measurements.record(
                    "leaves done", self._sizes.leaves / ingest(server, folder, "--output", str(run_folder / "out"))
                )
                self.measurements.record("leaves again", self._sizes.leaves / ingest(server, folder, "--wait"))

    @contextmanager
    def _temporary_folder(self) -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


PARTS: Final[dict[str, Callable[[PdfBenchmark], None]]] = {
    "books": PdfBenchmark.books,
    "manuals": PdfBenchmark.manuals,
    "leaves": PdfBenchmark.leaves,
}


def run_converter(name: str, folder: Path) -> ConversionResult:
    """Run a converter alone, in separate processes."""
    command = [sys.executable, "-m", "benchmarks.pdf.standalone_converters", name, str(folder)]
    text = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True).stdout
    return msgspec.json.decode(text.splitlines()[-1], type=ConversionResult)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pdf", description=ABOUT)
    parser.add_argument(
        "--quick", action="store_true", help="run a smoke test of about a minute, without meaningful numbers"
    )
    parser.add_argument(
        "--only", action="append", choices=tuple(PARTS), metavar="NAME",
        help=f"part to measure; can be repeated: {', '.join(PARTS)}",
    )  # fmt: skip
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
    folder = bench_folder().resolve()
    began, machine = time.monotonic(), describe(folder)
    benchmark = PdfBenchmark(folder, sizes)
    for part in options.only or PARTS:
        print(f"  {part} ...", flush=True)
        benchmark.run(part)
    lines = [f"## PDFs: {machine.when}, revision {machine.revision}", "", *machine.lines]
    lines.append(
        f"{sizes.books} books of {sizes.pages} pages, {sizes.leaves:,} leaves; medians of {sizes.rounds} rounds, "
    )
    lines[-1] += f"ratios within a round; {(time.monotonic() - began) / 60:.0f} min"
    lines += [other_load_line(benchmark.others_shares), "", *render(benchmark.measurements)]
    text = "\n".join(lines)
    print(f"\n{text}")
    if not options.keep and (options.quick or options.only or count_disturbed(benchmark.others_shares)):
        print(f"Not appended to benchmarks/{RESULTS.name}: the run was partial or disturbed. --keep appends it anyway.")
    else:
        append_report(text, RESULTS)
        print(f"Appended to benchmarks/{RESULTS.name}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
