"""Markdown of a whole document, made of its pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from ingot.worker.handlers.documents.checkpoints import FinishedPage, PagePicture
from ingot.worker.handlers.documents.markdown import alphanumeric, apply_heading_levels, heading_levels, headings

ABOVE_CHARS: Final = 24  # Of the line above a picture: so many are seldom there twice.


def compose_markdown(pages: Sequence[FinishedPage]) -> str:
    """The pages one below the other, each with its mark, and headings on the levels of the document."""
    levels = heading_levels(size for page in pages for size in page.sizes)
    return "".join(f"\n{_page_markdown(page, levels)}\n" for page in pages)


def _page_markdown(page: FinishedPage, levels: dict[float, int]) -> str:
    blocks = apply_heading_levels(page.text, page.sizes, levels).split("\n\n") if page.text else []
    for figure in page.figures:
        blocks.insert(_picture_index(blocks, figure), f"![{_alt_text(page, figure)}]({quote(figure.name)})")
    return "\n\n".join([page_marker(page), *_unread_notice(page), *blocks])


def page_marker(page: FinishedPage) -> str:
    """A comment that says where a page begins, and how it was read."""
    how = ", read by OCR" if page.was_read else ", needs OCR" if page.unread else ""
    return f"<!-- page {page.number}{how} -->"


def _unread_notice(page: FinishedPage) -> list[str]:
    if not page.unread:
        return []
    return [f"> **Page {page.number} is a picture of text that was not read:** {page.unread}"]


def _alt_text(page: FinishedPage, figure: PagePicture) -> str:
    return f"Picture {figure.name.rpartition('-')[2].partition('.')[0]} of page {page.number}"


def _picture_index(blocks: Sequence[str], figure: PagePicture) -> int:
    """Where a picture goes: below the text that is above it in the page, and else at the end."""
    if not (above := alphanumeric(figure.above)[-ABOVE_CHARS:]):
        return len(blocks) if figure.above else 0
    found = [
        place for place, block in enumerate(blocks, 1) if above in alphanumeric(block) and not block.startswith("![")
    ]
    place = found[0] if len(found) == 1 else len(blocks)
    while place < len(blocks) and blocks[place].startswith("!["):
        place += 1
    return place


def first_heading(pages: Sequence[FinishedPage]) -> str:
    """The first heading of a document, if there is one."""
    return next((found[0] for page in pages if (found := headings(page.text))), "")
