"""The one file that a handler reads, and the names and types of what it makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

from ingot.worker.job import NoRetry

MARKDOWN_CONTENT_TYPE: Final = "text/markdown; charset=utf-8"
TEXT_CONTENT_TYPE: Final = "text/plain; charset=utf-8"
STEM_CHARS_MAX: Final = 60  # With four bytes a letter, it still fits a file system.


def only_input(names: Sequence[str]) -> str:
    """The name of a job's only input. Raises `NoRetry`."""
    if len(names) != 1:
        raise NoRetry(f"this handler reads one input file, and the job has {len(names)}")
    return names[0]


def output_stem(name: str) -> str:
    """What the outputs of a file begin with: its name without the suffix."""
    stem = PurePath(name.replace("\\", "/")).stem.strip(". ")
    printable = "".join(char if char.isprintable() else "-" for char in stem)
    return printable[:STEM_CHARS_MAX].strip() or "document"
