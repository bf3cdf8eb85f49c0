"""Markdown of a whole document, made of its pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from ingot.worker.handlers.documents.checkpoints import Figure, Page
from ingot.worker.handlers.documents.markdown import headings, ladder, letters, leveled

ABOVE_LETTERS: Final = 24  # Of the line above a picture: so many are seldom there twice.


def composed(pages: Sequence[Page]) -> str:
    """The pages one below the other, each with its mark, and headings on the levels of the document."""
    levels = ladder(size for page in pages for size in page.sizes)
    return "".join(f"\n{_page(page, levels)}\n" for page in pages)


def _page(page: Page, levels: dict[float, int]) -> str:
    blocks = leveled(page.text, page.sizes, levels).split("\n\n") if page.text else []
    for figure in page.figures:
        blocks.insert(_place(blocks, figure), f"![{_words(page, figure)}]({quote(figure.name)})")
    return "\n\n".join([mark(page), *_note(page), *blocks])


def mark(page: Page) -> str:
    """A comment that says where a page begins, and how it was read."""
    how = ", read by OCR" if page.was_read else ", needs OCR" if page.unread else ""
    return f"<!-- page {page.number}{how} -->"


def _note(page: Page) -> list[str]:
    if not page.unread:
        return []
    return [f"> **Page {page.number} is a picture of text that was not read:** {page.unread}"]


def _words(page: Page, figure: Figure) -> str:
    return f"Picture {figure.name.rpartition('-')[2].partition('.')[0]} of page {page.number}"


def _place(blocks: Sequence[str], figure: Figure) -> int:
    """Where a picture goes: below the text that is above it in the page, and else at the end."""
    if not (above := letters(figure.above)[-ABOVE_LETTERS:]):
        return len(blocks) if figure.above else 0
    found = [place for place, block in enumerate(blocks, 1) if above in letters(block) and not block.startswith("![")]
    place = found[0] if len(found) == 1 else len(blocks)
    while place < len(blocks) and blocks[place].startswith("!["):
        place += 1
    return place


def first_heading(pages: Sequence[Page]) -> str:
    """The first heading of a document, if there is one."""
    return next((found[0] for page in pages if (found := headings(page.text))), "")
