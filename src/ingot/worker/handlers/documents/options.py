"""What may be asked of the handlers of documents, checked before anything is read."""

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
    """What every handler of documents takes.

    `languages` are names as tesseract knows them; `pages` names some, as in "3-10" or "1,4,9-".
    """

    languages: tuple[str, ...] = ("eng",)
    pages: str | None = None

    def check(self) -> None:
        """Raises `NoRetry` for what cannot be."""
        if not 1 <= len(self.languages) <= LANGUAGES_MAX or not all(map(_LANGUAGE.fullmatch, self.languages)):
            raise NoRetry(f'the option languages is a list of 1 to {LANGUAGES_MAX} names, such as ["eng", "deu"]')
        parse_page_ranges(self.pages)


class PdfOptions(DocumentOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the handler of PDFs takes."""

    converter: str = "inspector"
    ocr: Literal["auto", "never", "always"] = "auto"
    images: bool = True


class OcrOptions(DocumentOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the handler of pictures and scans takes. `dpi` is how fine a PDF is drawn before it is read."""

    dpi: int = DPI_DEFAULT

    def check(self) -> None:
        """Raises `NoRetry` for what cannot be."""
        super().check()
        if not DPI_MIN <= self.dpi <= DPI_MAX:
            raise NoRetry(f"the option dpi is {self.dpi}; it goes from {DPI_MIN} to {DPI_MAX}")


def read_document_options(payload: Any, kind: type[T]) -> T:
    """The options in a payload, which may be none. Raises `NoRetry` that names what is wrong."""
    known = read_options(payload, kind)
    known.check()
    return known


def parse_page_ranges(selection: str | None) -> list[tuple[int, int | None]]:
    """The first and last pages that a selection names; none for all pages. Raises `NoRetry`."""
    if selection is None:
        return []
    found = [_RANGE.fullmatch(part.strip()) for part in selection[:SELECTION_CHARS_MAX].split(",")]
    if len(selection) > SELECTION_CHARS_MAX or not all(found):
        raise NoRetry(f'the option pages is {selection[:40]!r}; write it as in "3-10" or "1,4,9-"')
    pairs = []
    for match in filter(None, found):
        first = int(match[1])
        last = None if match[0].endswith("-") else int(match[2] or first)
        if first < 1 or (last is not None and last < first):
            raise NoRetry(f"the option pages has {match[0]!r}; pages count from 1, and the first comes first")
        pairs.append((first, last))
    return pairs


def select_pages(selection: str | None, pages: int) -> list[int]:
    """The pages that a selection names, each once and in the order of the file. Raises `NoRetry`."""
    named = parse_page_ranges(selection)
    if not named:
        return list(range(1, pages + 1))
    chosen: set[int] = set()
    for first, last in named:
        if max(first, last or 0) > pages:
            raise NoRetry(f"there is no page {max(first, last or 0)}: the file has {pages}")
        chosen.update(range(first, (last or pages) + 1))
    return sorted(chosen)


def format_page_ranges(pages: list[int]) -> str:
    """Pages in the words of a selection: "1-3,7"."""
    parts: list[list[int]] = []
    for page in pages:
        if parts and page == parts[-1][-1] + 1:
            parts[-1][1:] = [page]
        else:
            parts.append([page])
    return ",".join("-".join(map(str, part)) for part in parts)
