"""The input file of built-in handlers, and the names and content types of their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

from ingot.worker.job import NoRetry

MARKDOWN_CONTENT_TYPE: Final = "text/markdown; charset=utf-8"
TEXT_CONTENT_TYPE: Final = "text/plain; charset=utf-8"
STEM_CHARS_MAX: Final = 60  # Fits the limit of file systems even with four bytes per character.


def only_input(names: Sequence[str]) -> str:
    """Return the name of the only input of a job. Raises `NoRetry`."""
    if len(names) != 1:
        raise NoRetry(f"this handler needs exactly one input file, got {len(names)}")
    return names[0]


def output_stem(name: str) -> str:
    """Return the first part of output names: the name of the input without its suffix."""
    stem = PurePath(name.replace("\\", "/")).stem.strip(". ")
    printable = "".join(char if char.isprintable() else "-" for char in stem)
    return printable[:STEM_CHARS_MAX].strip() or "document"
