"""Composes the Markdown of a document from its pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from ingot.worker.handlers.documents.checkpoints import FinishedPage, PagePicture
from ingot.worker.handlers.documents.markdown import alphanumeric, apply_heading_levels, heading_levels, headings

ABOVE_CHARS: Final = (
    24  # Characters of the line above a picture that are compared. A text of this length is rarely repeated.
)


def compose_markdown(pages: Sequence[FinishedPage]) -> str:
    """Join the pages, each after a page marker. Heading levels are computed for the whole document."""
    levels = heading_levels(size for page in pages for size in page.sizes)
    return "".join(f"\n{_page_markdown(page, levels)}\n" for page in pages)


def _page_markdown(page: FinishedPage, levels: dict[float, int]) -> str:
    blocks = apply_heading_levels(page.text, page.sizes, levels).split("\n\n") if page.text else []
    for figure in page.figures:
        blocks.insert(_picture_index(blocks, figure), f"![{_alt_text(page, figure)}]({quote(figure.name)})")
    return "\n\n".join([page_marker(page), *_unread_notice(page), *blocks])


def page_marker(page: FinishedPage) -> str:
    """Return a comment that marks the beginning of a page, with its OCR status."""
    ocr_status = ", read by OCR" if page.was_read else ", needs OCR" if page.unread else ""
    return f"<!-- page {page.number}{ocr_status} -->"


def _unread_notice(page: FinishedPage) -> list[str]:
    if not page.unread:
        return []
    return [f"> **Page {page.number} is a picture of text that was not read:** {page.unread}"]


def _alt_text(page: FinishedPage, figure: PagePicture) -> str:
    return f"Picture {figure.name.rpartition('-')[2].partition('.')[0]} of page {page.number}"


def _picture_index(blocks: Sequence[str], figure: PagePicture) -> int:
    """Return the block index for a picture: after the text above it, or at the end if that is not found."""
    if not (above := alphanumeric(figure.above)[-ABOVE_CHARS:]):
        return len(blocks) if figure.above else 0
    positions = [
        position
        for position, block in enumerate(blocks, 1)
        if above in alphanumeric(block) and not block.startswith("![")
    ]
    position = positions[0] if len(positions) == 1 else len(blocks)
    while position < len(blocks) and blocks[position].startswith("!["):
        position += 1
    return position


def first_heading(pages: Sequence[FinishedPage]) -> str:
    """Return the first heading of a document, or an empty string."""
    return next((page_headings[0] for page in pages if (page_headings := headings(page.text))), "")
