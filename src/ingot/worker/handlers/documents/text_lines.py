"""The lines of a page, as pdf-inspector places their runs: where paragraphs meet, and what a list of contents says."""

from __future__ import annotations

import re
from itertools import groupby, pairwise
from typing import Any, Final

import msgspec

LINE_STEP_MIN: Final = 0.9  # Of the size of the letters: less is a raised or lowered letter.
WIDE_STEP_MIN: Final = 1.3  # Of the narrow steps: more parts paragraphs.
WIDE_STEP_MAX: Final = 3.0
LEADERS_MIN: Final = 3  # Lines with dots that lead to a number make a list of contents.
LETTER_SHARE_MIN: Final = 0.6  # Of the characters of such a list, without its dots.
_LEADER: Final = re.compile(r"\s*(?:[.·…]\s*){4,}")


class TextLine(msgspec.Struct, frozen=True):
    """A line of text: its runs from the first to the last."""

    runs: list[Any]

    @property
    def text(self) -> str:
        """What it says."""
        return " ".join(run.text.strip() for run in self.runs)


def group_lines(items: list[Any]) -> list[TextLine]:
    """The lines of a page in their order."""
    texts = [item for item in items if item.item_type == "text" and item.rotation == 0]
    return [TextLine(list(row)) for _, row in groupby(texts, lambda item: round(item.y))]


def paragraph_breaks(lines: list[TextLine]) -> list[tuple[str, str]]:
    """The ends and beginnings that a gap parts which is wider than others of the page: two paragraphs meet there."""
    steps = []
    for above, below in pairwise(lines):
        first, second = above.runs[0], below.runs[0]
        step = first.y - second.y
        are_alike = first.font_size == second.font_size and abs(first.x - second.x) < first.font_size
        if are_alike and step > LINE_STEP_MIN * first.font_size:
            steps.append((above.runs[-1].text, second.text, step))
    narrow = min((step for *_, step in steps), default=0)
    return [(end, begin) for end, begin, step in steps if WIDE_STEP_MIN * narrow < step < WIDE_STEP_MAX * narrow]


def table_of_contents(lines: list[TextLine]) -> str | None:
    """A list of contents in Markdown, or `None` when the page is none.

    pdf-inspector takes its dots for garbled text.
    """
    texts = [line.text for line in lines]
    if sum(bool(_LEADER.search(text)) for text in texts) < LEADERS_MIN:
        return None
    short = [_LEADER.sub(" … ", text).strip() for text in texts]
    seen = "".join("".join(short).split()).replace("…", "")
    if sum(char.isalnum() for char in seen) < LETTER_SHARE_MIN * len(seen):
        return None
    return "\n".join(f"- {text}" if "…" in text else f"\n{text}\n" for text in short).strip()
