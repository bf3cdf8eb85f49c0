"""Converters without a server, one process per core: `python -m benchmarks.pdf.standalone_converters NAME FOLDER`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from benchmarks.queue.adapter import component


class ConversionResult(msgspec.Struct, frozen=True):
    """The number of converted files, and the seconds after all processes were ready."""

    files: int
    seconds: float


def ours(path: str) -> int:
    """Convert with the code of Ingot's handler."""
    from ingot.worker.handlers.documents.converting import convert  # noqa: PLC0415

    with TemporaryDirectory() as folder:
        return convert(Path(path), folder=Path(folder)).markdown.stat().st_size


def markitdown(path: str) -> int:
    """Convert with markitdown, to text without headings."""
    return len(_markitdown().convert(path).text_content)


@cache
def _markitdown() -> Any:
    return component("markitdown").MarkItDown()


def pdfplumber(path: str) -> int:
    """Extract text with pdfplumber, in a loop over the pages."""
    plumber: Any = component("pdfplumber")
    with plumber.open(path) as document:
        return sum(len(page.extract_text() or "") for page in document.pages)


CONVERTERS: Final[dict[str, Callable[[str], int]]] = {"ours": ours, "markitdown": markitdown, "pdfplumber": pdfplumber}


def run(name: str, folder: Path) -> ConversionResult:
    """Convert all files of a folder on all cores."""
    convert, cores = CONVERTERS[name], len(os.sched_getaffinity(0))
    paths = [str(path) for path in sorted(folder.rglob("*.pdf"))]
    with ProcessPoolExecutor(cores) as pool:
        list(pool.map(convert, paths[:1] * cores))  # Loads the libraries in all processes.
        began = time.perf_counter()
        sizes = list(pool.map(convert, paths, chunksize=1))
        seconds = time.perf_counter() - began
    if not all(sizes):
        sys.exit(f"benchmark: {name} extracted nothing from {paths[sizes.index(0)]}")
    return ConversionResult(files=len(paths), seconds=seconds)


if __name__ == "__main__":
    print(msgspec.json.encode(run(sys.argv[1], Path(sys.argv[2]))).decode())
