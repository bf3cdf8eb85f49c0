"""Markdown: what converters get wrong in it mended, its headings in order, and plain text made fit for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

HEADING_LEVELS_MAX: Final = 6
CONTEXT_WORDS: Final = 3  # On each side of a place in a text; so many are seldom there twice.
_HEADING: Final = re.compile(r"(#{1,6}) (.+)")
_BROKEN_BOLD: Final = re.compile(r"(?<=[^\s*])(\*{1,3}) \1(?=[^\s*])")
_GLUED_HEADING: Final = re.compile(r"(?<=[^\n])\n(?=#{1,6} )")
_TAG: Final = re.compile(r"<(?!/?(?:u|sup|sub)>|br>)(?=[A-Za-z/!?])")
_SPECIAL: Final = re.compile(r"[\\`*]|<(?=[A-Za-z/!?])|^[#>]", re.MULTILINE)
_NON_PARAGRAPH_START: Final = re.compile(r"[#>|`]|[-*+] |\d+[.)] ")
_NON_ALPHANUMERIC: Final = re.compile(r"[\W_]+")
_UNFINISHED_SENTENCE: Final = re.compile(r"[^\W\d_]|,")


def alphanumeric(text: str) -> str:
    """Only the letters and digits of a text: what two ways of reading it have in common."""
    return _NON_ALPHANUMERIC.sub("", text).lower()


def escape_markdown(text: str) -> str:
    """A text line by line, in which nothing is taken for Markdown but its lists."""
    lines = (line.strip() for line in text.replace("\x0c", "\n").splitlines())
    kept = "\n".join(_SPECIAL.sub(r"\\\g<0>", line) for line in lines)
    return re.sub(r"\n{3,}", "\n\n", kept).strip()


def repair_markdown(markdown: str) -> str:
    """Emphasis that a line ends is whole, headings stand alone, tags are text, and columns break no sentence."""
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
    """Sentences that go on in the next column, with what they go on with."""
    found: list[str] = []
    for block in blocks:
        if (
            found
            and block[:1].islower()
            and _UNFINISHED_SENTENCE.fullmatch(found[-1][-1:])
            and not _NON_PARAGRAPH_START.match(found[-1])
        ):
            found[-1] += f" {block}"
        else:
            found.append(block)
    return found


def split_paragraphs(markdown: str, gaps: Sequence[tuple[str, str]]) -> str:
    """The Markdown with a new paragraph wherever these ends and beginnings of lines meet, if they do so just once.

    Spaces and emphasis are not compared: the two ways of reading a page differ in them.
    """
    if not gaps:
        return markdown
    places = [place for place, char in enumerate(markdown) if char not in " *"]
    bare = "".join([markdown[place] for place in places])
    breaks = set()
    for above, below in gaps:
        end, beginning = (
            _without_emphasis(above.split()[-CONTEXT_WORDS:]),
            _without_emphasis(below.split()[:CONTEXT_WORDS]),
        )
        if end and beginning and bare.count(end + beginning) == 1:
            last = bare.index(end + beginning) + len(end) - 1
            space = markdown.find(" ", places[last], places[last + 1])
            breaks.add(space)
    for space in sorted(breaks - {-1}, reverse=True):
        markdown = f"{markdown[:space]}\n\n{markdown[space + 1 :]}"
    return markdown


def _without_emphasis(words: Sequence[str]) -> str:
    return "".join(words).replace("*", "")


def headings(markdown: str) -> list[str]:
    """Its headings, in their order."""
    return [match[2] for match in map(_HEADING.fullmatch, markdown.splitlines()) if match]


def heading_levels(sizes: Iterable[float]) -> dict[float, int]:
    """The level of headings by the size of their letters: the largest of the document is the first."""
    steps = sorted({_rounded_size(size) for size in sizes if size > 0}, reverse=True)
    return {step: min(rank, HEADING_LEVELS_MAX) for rank, step in enumerate(steps, 1)}


def apply_heading_levels(markdown: str, sizes: Sequence[float], levels: dict[float, int]) -> str:
    """The Markdown of a page with its headings on the levels of the document."""
    left = iter(sizes)

    def line(text: str) -> str:
        match = _HEADING.fullmatch(text)
        level = levels.get(_rounded_size(next(left, 0))) if match else None
        return f"{'#' * level} {match[2]}" if match and level else text

    return "\n".join(map(line, markdown.split("\n")))


def _rounded_size(size: float) -> float:
    return round(2 * size) / 2
