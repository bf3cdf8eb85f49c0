"""The converter `inspector`: Markdown of PDFs by pdf-inspector, with repairs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pdf_inspector

from ingot.worker.handlers.documents.markdown import alphanumeric, headings, repair_markdown, split_paragraphs
from ingot.worker.handlers.documents.ports import PageText, Unreadable
from ingot.worker.handlers.documents.text_lines import group_lines, paragraph_breaks, table_of_contents

GARBLED_REASON: Final = "suspected_garbled_text"


class PdfInspectorConverter:
    """Extracts headings, tables, lists and emphasis, and follows columns."""

    version = version("pdf-inspector")

    def pages(self, path: Path, numbers: Sequence[int]) -> list[PageText]:
        """See `Converter.pages`."""
        try:
            extracted = pdf_inspector.extract_pages_markdown(str(path), pages=[number - 1 for number in numbers])
            items = pdf_inspector.extract_text_with_positions(str(path), pages=list(numbers))
        except ValueError as error:
            raise Unreadable(str(error)) from error
        items_by_page = {page: list(page_items) for page, page_items in groupby(items, lambda item: item.page)}
        return [_page_text(page, items_by_page.get(page.page + 1, [])) for page in extracted.pages]


def _page_text(page: Any, items: list[Any]) -> PageText:
    lines = group_lines(items)
    if page.ocr_reason == GARBLED_REASON and (contents := table_of_contents(lines)) is not None:
        return PageText(markdown=repair_markdown(contents))
    markdown = split_paragraphs(repair_markdown(page.markdown), paragraph_breaks(lines))
    return PageText(markdown=markdown, is_picture=page.needs_ocr, sizes=heading_sizes(headings(markdown), items))


def heading_sizes(titles: Sequence[str], items: list[Any]) -> tuple[float, ...]:
    """Return the font size of each heading: the largest size among the text items that it contains."""
    parts = [(alphanumeric(item.text), float(item.font_size)) for item in items] if titles else []
    return tuple(_heading_size(alphanumeric(title), parts) for title in titles)


def _heading_size(title: str, parts: list[tuple[str, float]]) -> float:
    return max((size for part, size in parts if part and 4 * len(part) >= len(title) and part in title), default=0.0)
