"""The names of what is made of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

STEM_CHARS_MAX: Final = 60  # With four bytes a letter, it still fits a file system.


def stem_of(name: str) -> str:
    """What the outputs of a file begin with: its name without the suffix."""
    stem = Path(name.replace("\\", "/")).stem.strip(". ")
    printable = "".join(char if char.isprintable() else "-" for char in stem)
    return printable[:STEM_CHARS_MAX].strip() or "document"


def picture_name(stem: str, page: int, number: int, suffix: str) -> str:
    """What a picture of a page is called."""
    return f"{stem}-p{page:03d}-{number}.{suffix}"
