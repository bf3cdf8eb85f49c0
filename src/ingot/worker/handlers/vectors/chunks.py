"""A long text in pieces that a model can read whole, cut where a reader would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

BLOCK_CHARS: Final = 64 * 1024  # What is looked at at once: tokens take far more memory than their text.
SENTENCE_ENDS: Final = frozenset(".!?…:;。！？")
CLOSING_MARKS: Final = frozenset("\"')]}»”’")
INSIDE_WORD, WORD, SENTENCE, PARAGRAPH = range(4)  # How good it is to cut before a token.

CharSpan = tuple[int, int]  # From a character to before another.
Tokenize = Callable[[str], Sequence[CharSpan]]


class Chunk(NamedTuple):
    """A piece of a text, from a character to before another, and how many tokens it has."""

    start: int
    end: int
    tokens: int


def split_text(text: str, tokenize: Tokenize, *, tokens_max: int, overlap: int) -> list[Chunk]:
    """The pieces of a text, of so many tokens at most; each begins with about so many of the one before it."""
    spans = [span for block in _split_blocks(text) for span in _token_spans(text, block, tokenize)]
    ranks = [_cut_rank(text, before, after) for before, (after, _) in zip([0, *(end for _, end in spans)], spans)]  # noqa: B905
    found, first = [], 0
    while first < len(spans):
        last = _best_cut(ranks, first, first + tokens_max)
        found.append(Chunk(spans[first][0], spans[last - 1][1], last - first))
        first = last if last == len(spans) else _next_start(ranks, first, last, overlap)
    return found


def _split_blocks(text: str) -> Iterator[CharSpan]:
    """Parts of a text that can be tokenized alone: they end at a line, or else at a space."""
    start = 0
    while start < len(text):
        end = start + BLOCK_CHARS
        if end < len(text):
            at = max(text.rfind("\n", start, end), -1)
            at = at if at > start else text.rfind(" ", start, end)
            end = at if at > start else end
        yield start, min(end, len(text))
        start = end


def _token_spans(text: str, block: CharSpan, tokenize: Tokenize) -> Iterator[CharSpan]:
    start, end = block
    for left, right in tokenize(text[start:end]):
        if right > left:
            yield start + left, start + right


def _cut_rank(text: str, before: int, after: int) -> int:
    """How good it is to cut between two tokens, of which one ends here and the other begins there."""
    gap = text[before:after]
    if not gap.strip() and gap.count("\n") > 1:
        return PARAGRAPH
    if "\n" in gap and text[after] == "#":  # A heading of Markdown.
        return PARAGRAPH
    if not gap:
        return SENTENCE if before and text[before - 1] in "。！？" else INSIDE_WORD
    said = before
    while said > 1 and text[said - 1] in CLOSING_MARKS:
        said -= 1
    return SENTENCE if said and text[said - 1] in SENTENCE_ENDS else WORD


def _best_cut(ranks: Sequence[int], first: int, limit: int) -> int:
    """Where the piece that begins with this token ends: late, and where it is best in its second half."""
    if limit >= len(ranks):
        return len(ranks)
    least = first + max(1, (limit - first) // 2)
    return max(range(least, limit + 1), key=lambda at: (ranks[at], at))


def _next_start(ranks: Sequence[int], first: int, last: int, overlap: int) -> int:
    """Where the next piece begins: with what is to be in both, from the beginning of a word on."""
    start = max(last - overlap, first + 1)
    while start < last and ranks[start] == INSIDE_WORD:
        start += 1
    return start
