"""Markdown of PDFs by pdf-inspector, with what it gets wrong mended."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import pdf_inspector

from ingot.worker.handlers.documents.markdown import headings, letters, mended, parted
from ingot.worker.handlers.documents.ports import PageText, Unreadable

LINE_STEP_MIN: Final = 0.9  # Of the size of the letters: less is a raised or lowered letter.
WIDE_STEP_MIN: Final = 1.3  # Of the narrow steps: more parts paragraphs.
WIDE_STEP_MAX: Final = 3.0


class Inspector:
    """Headings, tables, lists, emphasis and the order of columns."""

    version = version("pdf-inspector")

    def pages(self, path: Path, numbers: Sequence[int]) -> list[PageText]:
        """See `Converter.pages`."""
        try:
            read = pdf_inspector.extract_pages_markdown(str(path), pages=[number - 1 for number in numbers])
            items = pdf_inspector.extract_text_with_positions(str(path), pages=list(numbers))
        except ValueError as error:
            raise Unreadable(str(error)) from error
        placed = {page: list(found) for page, found in groupby(items, lambda item: item.page)}
        return [_page(page, placed.get(page.page + 1, [])) for page in read.pages]


def _page(page: Any, items: list[Any]) -> PageText:
    markdown = parted(mended(page.markdown), gaps(items))
    return PageText(
        markdown=markdown,
        is_picture=page.needs_ocr,
        sizes=tuple(size_of(heading, items) for heading in headings(markdown)),
    )


def size_of(heading: str, items: list[Any]) -> float:
    """How large the letters of a heading are: the largest of what it is made of."""
    whole = letters(heading)
    parts = [(letters(item.text), item.font_size) for item in items]
    return float(
        max((size for part, size in parts if part and 4 * len(part) >= len(whole) and part in whole), default=0)
    )


class Line(msgspec.Struct, frozen=True):
    """A line of text: its runs from the first to the last."""

    first: Any
    last: Any


def gaps(items: list[Any]) -> list[tuple[str, str]]:
    """The lines that a gap parts, wider than that between other lines of the page: two paragraphs meet there."""
    lines = _lines(items)
    steps = [
        (above.last.text, below.first.text, above.first.y - below.first.y)
        for above, below in pairwise(lines)
        if _are_alike(above.first, below.first)
        and above.first.y - below.first.y > LINE_STEP_MIN * above.first.font_size
    ]
    narrow = min((step for *_, step in steps), default=0)
    return [(end, begin) for end, begin, step in steps if WIDE_STEP_MIN * narrow < step < WIDE_STEP_MAX * narrow]


def _lines(items: list[Any]) -> list[Line]:
    texts = [item for item in items if item.item_type == "text" and item.rotation == 0]
    rows = [list(row) for _, row in groupby(texts, lambda item: round(item.y))]
    return [Line(row[0], row[-1]) for row in rows]


def _are_alike(above: Any, below: Any) -> bool:
    return bool(above.font_size == below.font_size and abs(above.x - below.x) < above.font_size)
