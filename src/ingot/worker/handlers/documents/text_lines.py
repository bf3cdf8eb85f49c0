"""Groups the text items of pdf-inspector into lines, to find paragraph breaks and tables of contents."""

from __future__ import annotations

import re
from itertools import groupby, pairwise
from typing import Any, Final

import msgspec

LINE_STEP_MIN: Final = 0.9  # Relative to the font size. A smaller step is superscript or subscript.
WIDE_STEP_MIN: Final = 1.3  # Relative to the narrowest step. A wider step separates paragraphs.
WIDE_STEP_MAX: Final = 3.0  # Relative to the narrowest step. An even wider step is not between two paragraphs.
LEADERS_MIN: Final = 3  # Minimum number of lines with dot leaders in a table of contents.
LETTER_SHARE_MIN: Final = 0.6  # Minimum share of letters and digits in a table of contents, without leaders.
_LEADER: Final = re.compile(r"\s*(?:[.·…]\s*){4,}")


class TextLine(msgspec.Struct, frozen=True):
    """A line of text. `runs` are its text items in their order."""

    runs: list[Any]

    @property
    def text(self) -> str:
        """The text of the line."""
        return " ".join(run.text.strip() for run in self.runs)


def group_lines(items: list[Any]) -> list[TextLine]:
    """Group items into the lines of a page, in their order."""
    texts = [item for item in items if item.item_type == "text" and item.rotation == 0]
    return [TextLine(list(row)) for _, row in groupby(texts, lambda item: round(item.y))]


def paragraph_breaks(lines: list[TextLine]) -> list[tuple[str, str]]:
    """Return the line end and the line beginning at each paragraph break: a step wider than others on the page."""
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
    """Return a table of contents as Markdown, or `None` if the page is not one.

    pdf-inspector reports its dot leaders as garbled text.
    """
    texts = [line.text for line in lines]
    if sum(bool(_LEADER.search(text)) for text in texts) < LEADERS_MIN:
        return None
    shortened = [_LEADER.sub(" … ", text).strip() for text in texts]
    text_chars = "".join("".join(shortened).split()).replace("…", "")
    if sum(char.isalnum() for char in text_chars) < LETTER_SHARE_MIN * len(text_chars):
        return None
    return "\n".join(f"- {text}" if "…" in text else f"\n{text}\n" for text in shortened).strip()
