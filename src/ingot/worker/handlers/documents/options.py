"""The options of the handlers `pdf` and `ocr`, validated before any file is downloaded."""

from __future__ import annotations

import re
from typing import Any, Final, Literal, TypeVar

import msgspec

from ingot.worker.handlers.options import read_options
from ingot.worker.job import NoRetry

LANGUAGES_MAX: Final = 8
SELECTION_CHARS_MAX: Final = 1000
DPI_MIN: Final = 72
DPI_MAX: Final = 600
DPI_DEFAULT: Final = 300
_LANGUAGE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9})?)?")

T = TypeVar("T", bound="DocumentOptions")


class DocumentOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of both handlers.

    `languages` are tesseract's names of languages. `pages` selects pages, as in "3-10" or "1,4,9-".
    """

    languages: tuple[str, ...] = ("eng",)
    pages: str | None = None

    def check(self) -> None:
        """Raise `NoRetry` if an option is invalid."""
        if not 1 <= len(self.languages) <= LANGUAGES_MAX or not all(map(_LANGUAGE.fullmatch, self.languages)):
            raise NoRetry(f'the option languages must be a list of 1 to {LANGUAGES_MAX} names, such as ["eng", "deu"]')
        parse_page_ranges(self.pages)


class PdfOptions(DocumentOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the handler `pdf`."""

    converter: str = "inspector"
    ocr: Literal["auto", "never", "always"] = "auto"
    images: bool = True


class OcrOptions(DocumentOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the handler `ocr`. `dpi` is the resolution at which the pages of a PDF are rendered."""

    dpi: int = DPI_DEFAULT

    def check(self) -> None:
        """Raise `NoRetry` if an option is invalid."""
        super().check()
        if not DPI_MIN <= self.dpi <= DPI_MAX:
            raise NoRetry(f"the option dpi must be between {DPI_MIN} and {DPI_MAX}, got {self.dpi}")


def read_document_options(payload: Any, kind: type[T]) -> T:
    """Decode and validate the payload of a job. Raises `NoRetry` with the name of an invalid option."""
    options = read_options(payload, kind)
    options.check()
    return options


def parse_page_ranges(selection: str | None) -> list[tuple[int, int | None]]:
    """Parse a selection into ranges of pages; an open range ends with `None`. Raises `NoRetry`.

    Returns an empty list if there is no selection, which means all pages.
    """
    if selection is None:
        return []
    matches = [_RANGE.fullmatch(part.strip()) for part in selection[:SELECTION_CHARS_MAX].split(",")]
    if len(selection) > SELECTION_CHARS_MAX or not all(matches):
        raise NoRetry(f'the option pages is invalid: {selection[:40]!r}; use a selection such as "3-10" or "1,4,9-"')
    pairs = []
    for match in filter(None, matches):
        first = int(match[1])
        last = None if match[0].endswith("-") else int(match[2] or first)
        if first < 1 or (last is not None and last < first):
            raise NoRetry(
                f"the option pages has the invalid range {match[0]!r}; page numbers start at 1 and must ascend"
            )
        pairs.append((first, last))
    return pairs


def select_pages(selection: str | None, pages: int) -> list[int]:
    """Return the numbers of the selected pages in ascending order. Raises `NoRetry` if the file has fewer pages."""
    ranges = parse_page_ranges(selection)
    if not ranges:
        return list(range(1, pages + 1))
    chosen: set[int] = set()
    for first, last in ranges:
        if max(first, last or 0) > pages:
            raise NoRetry(f"there is no page {max(first, last or 0)}: the file has {pages} pages")
        chosen.update(range(first, (last or pages) + 1))
    return sorted(chosen)


def format_page_ranges(pages: list[int]) -> str:
    """Format page numbers as a selection, such as "1-3,7"."""
    parts: list[list[int]] = []
    for page in pages:
        if parts and page == parts[-1][-1] + 1:
            parts[-1][1:] = [page]
        else:
            parts.append([page])
    return ",".join("-".join(map(str, part)) for part in parts)
