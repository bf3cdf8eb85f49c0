"""The command: run every part in turns, print the ratios, keep the results."""

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
from benchmarks.pdf.end_to_end import ingest, running
from benchmarks.pdf.report import render
from benchmarks.pdf.standalone_converters import CONVERTERS, ConversionResult
from benchmarks.queue.folders import REPOSITORY, RESULTS, bench_folder
from benchmarks.queue.machine import describe
from benchmarks.queue.other_load import OtherLoad
from benchmarks.queue.report import append_report, count_disturbed, other_load_line
from benchmarks.worker.ingot_server import serving
from tests.pdf_corpus import corpus as debian_manuals

ABOUT: Final = "Measure PDFs on their whole way beside converters alone."
SLOW: Final = frozenset({"markitdown", "pdfplumber"})  # These get fewer files: their figure is a rate.


class RunSizes(msgspec.Struct, frozen=True, kw_only=True):
    """How often each is measured, and on how much."""

    rounds: int = 3
    books: int = 20
    pages: int = 100
    slow_books: int = 2
    leaves: int = 1000


QUICK: Final = RunSizes(rounds=1, books=8, pages=20, slow_books=2, leaves=50)


class PdfBenchmark:
    """One run: a folder on the disk that is measured, and what was found."""

    def __init__(self, folder: Path, sizes: RunSizes) -> None:
        self._folder, self._sizes = folder, sizes
        self.found = Measurements()
        self.others_shares: list[float] = []

    def run(self, part: str) -> None:
        """Measure one part."""
        others = OtherLoad()
        PARTS[part](self)
        self.others_shares.append(others.share())

    def books(self) -> None:
        """Many pages, on the whole way and alone, in turns."""
        sizes = self._sizes
        folder = corpus.books(self._folder / "pdf", count=sizes.books, pages=sizes.pages)
        few = corpus.books(self._folder / "pdf", count=sizes.slow_books, pages=sizes.pages)
        for _ in range(sizes.rounds):
            for name in CONVERTERS:
                done = alone(name, few if name in SLOW else folder)
                self.found.note("alone" if name == "ours" else name, done.files * sizes.pages / done.seconds)
            with self._place() as place, running(place) as site:
                ingest(site, few, "--output", str(place / "warm"))
                seconds = ingest(site, folder, "--force", "--output", str(place / "out"))
                self.found.note("whole", sizes.books * sizes.pages / seconds)

    def manuals(self) -> None:
        """What people really made: the manuals of some Debian packages."""
        folder = debian_manuals()
        pages = sum(corpus.pages_of(path) for path in folder.rglob("*.pdf"))
        for _ in range(self._sizes.rounds):
            self.found.note("manuals alone", pages / alone("ours", folder).seconds)
            with self._place() as place, running(place) as site:
                self.found.note("manuals whole", pages / ingest(site, folder, "--output", str(place / "out")))

    def leaves(self) -> None:
        """Many files of one page."""
        folder = corpus.books(self._folder / "pdf", count=self._sizes.leaves, pages=1)
        for _ in range(self._sizes.rounds):
            with self._place() as place, running(place) as site:
                self.found.note("leaves asked", self._sizes.leaves / ingest(site, folder))
            with self._place() as place, serving(place) as site:
                self.found.note("leaves stored", self._sizes.leaves / ingest(site, folder))
            with self._place() as place, running(place) as site:
                self.found.note(
                    "leaves done", self._sizes.leaves / ingest(site, folder, "--output", str(place / "out"))
                )
                self.found.note("leaves again", self._sizes.leaves / ingest(site, folder, "--wait"))

    @contextmanager
    def _place(self) -> Iterator[Path]:
        place = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)


PARTS: Final[dict[str, Callable[[PdfBenchmark], None]]] = {
    "books": PdfBenchmark.books,
    "manuals": PdfBenchmark.manuals,
    "leaves": PdfBenchmark.leaves,
}


def alone(name: str, folder: Path) -> ConversionResult:
    """A converter in processes of its own."""
    command = [sys.executable, "-m", "benchmarks.pdf.standalone_converters", name, str(folder)]
    text = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True).stdout
    return msgspec.json.decode(text.splitlines()[-1], type=ConversionResult)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pdf", description=ABOUT)
    parser.add_argument("--quick", action="store_true", help="a smoke run of about a minute; figures mean little")
    parser.add_argument(
        "--only", action="append", choices=tuple(PARTS), metavar="NAME",
        help=f"only this part; may be repeated: {', '.join(PARTS)}",
    )  # fmt: skip
    parser.add_argument("--keep", action="store_true", help=f"write to {RESULTS.name} whatever this run was like")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # The servers must not outlive us.
    wanted = parse(arguments)
    sizes = QUICK if wanted.quick else RunSizes()
    folder = bench_folder().resolve()
    began, machine = time.monotonic(), describe(folder)
    bench = PdfBenchmark(folder, sizes)
    for part in wanted.only or PARTS:
        print(f"  {part} ...", flush=True)
        bench.run(part)
    lines = [f"## PDFs: {machine.when}, revision {machine.revision}", "", *machine.lines]
    lines.append(
        f"{sizes.books} books of {sizes.pages} pages, {sizes.leaves:,} leaves; medians of {sizes.rounds} rounds, "
    )
    lines[-1] += f"ratios of one round; {(time.monotonic() - began) / 60:.0f} min"
    lines += [other_load_line(bench.others_shares), "", *render(bench.found)]
    text = "\n".join(lines)
    print(f"\n{text}")
    if not wanted.keep and (wanted.quick or wanted.only or count_disturbed(bench.others_shares)):
        print(f"Not kept in benchmarks/{RESULTS.name}: part of a run, or disturbed. --keep keeps it all the same.")
    else:
        append_report(text, RESULTS)
        print(f"Kept in benchmarks/{RESULTS.name}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
