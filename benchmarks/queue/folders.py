"""The folders of the benchmarks: for results, downloads and measured files."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "benchmarks" / "RESULTS.md"


def bench_folder() -> Path:
    """Return the folder `.bench` in the repository, which Git ignores. It is created if necessary."""
    folder = REPOSITORY / ".bench"
    folder.mkdir(exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    return folder
