"""Markdown functions: repair the output of converters, adjust headings, and escape plain text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

HEADING_LEVELS_MAX: Final = 6
CONTEXT_WORDS: Final = 3  # Words compared on each side of a position. A sequence of this length is rarely repeated.
_HEADING: Final = re.compile(r"(#{1,6}) (.+)")
_BROKEN_BOLD: Final = re.compile(r"(?<=[^\s*])(\*{1,3}) \1(?=[^\s*])")
_GLUED_HEADING: Final = re.compile(r"(?<=[^\n])\n(?=#{1,6} )")
_TAG: Final = re.compile(r"<(?!/?(?:u|sup|sub)>|br>)(?=[A-Za-z/!?])")
_SPECIAL: Final = re.compile(r"[\\`*]|<(?=[A-Za-z/!?])|^[#>]", re.MULTILINE)
_NON_PARAGRAPH_START: Final = re.compile(r"[#>|`]|[-*+] |\d+[.)] ")
_NON_ALPHANUMERIC: Final = re.compile(r"[\W_]+")
_UNFINISHED_SENTENCE: Final = re.compile(r"[^\W\d_]|,")


def alphanumeric(text: str) -> str:
    """Return only the letters and digits of a text in lower case, to compare texts of different converters."""
    return _NON_ALPHANUMERIC.sub("", text).lower()


def escape_markdown(text: str) -> str:
    """Escape plain text so that only lists are interpreted as Markdown. Line breaks are kept."""
    lines = (line.strip() for line in text.replace("\x0c", "\n").splitlines())
    escaped = "\n".join(_SPECIAL.sub(r"\\\g<0>", line) for line in lines)
    return re.sub(r"\n{3,}", "\n\n", escaped).strip()


def repair_markdown(markdown: str) -> str:
    """Join broken emphasis and sentences, separate headings from paragraphs, and escape HTML tags."""
    return "\n\n".join(_join_sentences(_repair_blocks(_GLUED_HEADING.sub("\n\n", markdown))))


def _repair_blocks(markdown: str) -> Iterator[str]:
    is_code = False
    for block in markdown.strip().split("\n\n"):
        was_code, is_code = is_code, is_code ^ bool(block.count("```") % 2)
        if was_code or "```" in block:
            yield block
        elif block.strip():
            yield _TAG.sub(r"\\<", _BROKEN_BOLD.sub(" ", block)).strip("\n")


def _join_sentences(blocks: Iterable[str]) -> list[str]:
    """Join blocks where a sentence continues in the next column."""
    joined: list[str] = []
    for block in blocks:
        if (
            joined
            and block[:1].islower()
            and _UNFINISHED_SENTENCE.fullmatch(joined[-1][-1:])
            and not _NON_PARAGRAPH_START.match(joined[-1])
        ):
            joined[-1] += f" {block}"
        else:
            joined.append(block)
    return joined


def split_paragraphs(markdown: str, gaps: Sequence[tuple[str, str]]) -> str:
    """Insert paragraph breaks between these pairs of line ends and line beginnings.

    A pair that occurs more than once is ignored. Spaces and emphasis are not compared, because the Markdown and the
    text lines of a page differ in them.
    """
    if not gaps:
        return markdown
    positions = [position for position, char in enumerate(markdown) if char not in " *"]
    bare = "".join([markdown[position] for position in positions])
    breaks = set()
    for above, below in gaps:
        end, beginning = (
            _without_emphasis(above.split()[-CONTEXT_WORDS:]),
            _without_emphasis(below.split()[:CONTEXT_WORDS]),
        )
        if end and beginning and bare.count(end + beginning) == 1:
            last = bare.index(end + beginning) + len(end) - 1
            space = markdown.find(" ", positions[last], positions[last + 1])
            breaks.add(space)
    for space in sorted(breaks - {-1}, reverse=True):
        markdown = f"{markdown[:space]}\n\n{markdown[space + 1 :]}"
    return markdown


def _without_emphasis(words: Sequence[str]) -> str:
    return "".join(words).replace("*", "")


def headings(markdown: str) -> list[str]:
    """Return the headings in their order."""
    return [match[2] for match in map(_HEADING.fullmatch, markdown.splitlines()) if match]


def heading_levels(sizes: Iterable[float]) -> dict[float, int]:
    """Map font sizes to heading levels. The largest size of the document has level 1."""
    steps = sorted({_rounded_size(size) for size in sizes if size > 0}, reverse=True)
    return {step: min(rank, HEADING_LEVELS_MAX) for rank, step in enumerate(steps, 1)}


def apply_heading_levels(markdown: str, sizes: Sequence[float], levels: dict[float, int]) -> str:
    """Set the headings of a page to the levels of the document. `sizes` has the font size of each heading."""
    remaining_sizes = iter(sizes)

    def apply_level(text: str) -> str:
        match = _HEADING.fullmatch(text)
        level = levels.get(_rounded_size(next(remaining_sizes, 0))) if match else None
        return f"{'#' * level} {match[2]}" if match and level else text

    return "\n".join(map(apply_level, markdown.split("\n")))


def _rounded_size(size: float) -> float:
    return round(2 * size) / 2
