"""What a converter promises, and what it is told of the job that it works for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec


class PageText(msgspec.Struct, frozen=True, kw_only=True):
    """One page as a converter reads it.

    `is_picture` says that there is text to be seen which only OCR can read. `sizes` are those of the letters of its
    headings, in their order and 0 for what is not known; by them the headings of all pages get their levels.
    """

    markdown: str
    is_picture: bool = False
    sizes: tuple[float, ...] = ()


class Converter(Protocol):
    """Reads the text of PDFs. There is one for each document."""

    version: str

    def pages(self, path: Path, numbers: Sequence[int]) -> list[PageText]:
        """These pages of a file, counted from 1, in this order.

        What comes of a page does not depend on which others are asked for. Raises `Unreadable`.
        """


class Unreadable(Exception):
    """A converter cannot read the file; another may."""


class ConversionProgress(Protocol):
    """Who is told how far the work is, and keeps what is done for the next attempt."""

    def progress(self, percent: float, stage: str = "") -> None:
        """Hear how far it is."""

    def check(self) -> None:
        """Raise when the work is to stop."""

    def save(self, source: bytes, name: str) -> None:
        """Keep something for later attempts."""

    def saved(self, name: str) -> bytes | None:
        """What was kept under this name."""


class NoProgress:
    """A watch for work that nobody waits for."""

    def progress(self, percent: float, stage: str = "") -> None:
        """Hear nothing."""

    def check(self) -> None:
        """Never stop it."""

    def save(self, source: bytes, name: str) -> None:
        """Keep nothing."""

    def saved(self, name: str) -> bytes | None:  # noqa: ARG002
        """Nothing."""
        return None
