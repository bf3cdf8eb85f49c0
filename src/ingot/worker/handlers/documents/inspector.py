"""Markdown of PDFs by pdf-inspector, with what it gets wrong mended."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pdf_inspector

from ingot.worker.handlers.documents.lines import contents, gaps, lines_of
from ingot.worker.handlers.documents.markdown import headings, letters, mended, parted
from ingot.worker.handlers.documents.ports import PageText, Unreadable

GARBLED: Final = "suspected_garbled_text"


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
    lines = lines_of(items)
    if page.ocr_reason == GARBLED and (listed := contents(lines)) is not None:
        return PageText(markdown=mended(listed))
    markdown = parted(mended(page.markdown), gaps(lines))
    return PageText(markdown=markdown, is_picture=page.needs_ocr, sizes=sizes_of(headings(markdown), items))


def sizes_of(titles: Sequence[str], items: list[Any]) -> tuple[float, ...]:
    """How large the letters of each heading are: the largest of what it is made of."""
    parts = [(letters(item.text), float(item.font_size)) for item in items] if titles else []
    return tuple(_size_of(letters(title), parts) for title in titles)


def _size_of(title: str, parts: list[tuple[str, float]]) -> float:
    return max((size for part, size in parts if part and 4 * len(part) >= len(title) and part in title), default=0.0)
