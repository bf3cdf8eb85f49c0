"""Where the benchmark keeps what it fetches and the files it measures on."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "benchmarks" / "RESULTS.md"


def bench_folder() -> Path:
    """`.bench` in the repository, which keeps itself out of git."""
    folder = REPOSITORY / ".bench"
    folder.mkdir(exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    return folder
