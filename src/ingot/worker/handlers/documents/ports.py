"""The interfaces of converters, and of the job that a conversion reports its progress to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec


class PageText(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a page from a converter.

    `is_picture` marks a page with visible text that only OCR can read. `sizes` are the font sizes of its headings in
    their order, 0 if unknown; they determine the heading levels of the document.
    """

    markdown: str
    is_picture: bool = False
    sizes: tuple[float, ...] = ()


class Converter(Protocol):
    """Extracts the text of a PDF. An instance is created for each document."""

    version: str

    def pages(self, path: Path, numbers: Sequence[int]) -> list[PageText]:
        """Convert these pages, counted from 1, and return them in this order.

        The text of a page must not depend on which other pages are requested. Raises `Unreadable`.
        """


class Unreadable(Exception):
    """The converter cannot read the file. Another converter may be able to."""


class ConversionProgress(Protocol):
    """Receives the progress of a conversion and stores its checkpoints. `WorkerJob` implements it."""

    def progress(self, percent: float, stage: str = "") -> None:
        """Report the progress."""

    def check(self) -> None:
        """Raise an exception if the conversion has to stop."""

    def save(self, source: bytes, name: str) -> None:
        """Save a checkpoint for later attempts."""

    def saved(self, name: str) -> bytes | None:
        """Return the checkpoint with this name, or `None`."""


class NoProgress:
    """A `ConversionProgress` that reports and saves nothing."""

    def progress(self, percent: float, stage: str = "") -> None:
        """Do nothing."""

    def check(self) -> None:
        """Do nothing: the conversion never has to stop."""

    def save(self, source: bytes, name: str) -> None:
        """Do nothing."""

    def saved(self, name: str) -> bytes | None:  # noqa: ARG002
        """Return `None`."""
        return None
