"""Splits a long text into chunks that fit a model, preferably at paragraphs and sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

BLOCK_CHARS: Final = 64 * 1024  # Tokenize a limited block at a time: tokens take far more memory than their text.
SENTENCE_ENDS: Final = frozenset(".!?…:;。！？")
CLOSING_MARKS: Final = frozenset("\"')]}»”’")
INSIDE_WORD, WORD, SENTENCE, PARAGRAPH = range(4)  # How suitable a position is for a cut, from worst to best.

CharSpan = tuple[int, int]  # Start and end offsets; the end is exclusive.
Tokenize = Callable[[str], Sequence[CharSpan]]


class Chunk(NamedTuple):
    """A chunk of a text: start offset, exclusive end offset, and number of tokens."""

    start: int
    end: int
    tokens: int


def split_text(text: str, tokenize: Tokenize, *, tokens_max: int, overlap: int) -> list[Chunk]:
    """Split a text into chunks of at most `tokens_max` tokens. Neighbours share about `overlap` tokens."""
    spans = [span for block in _split_blocks(text) for span in _token_spans(text, block, tokenize)]
    ranks = [_cut_rank(text, before, after) for before, (after, _) in zip([0, *(end for _, end in spans)], spans)]  # noqa: B905
    chunks, first = [], 0
    while first < len(spans):
        last = _best_cut(ranks, first, first + tokens_max)
        chunks.append(Chunk(spans[first][0], spans[last - 1][1], last - first))
        first = last if last == len(spans) else _next_start(ranks, first, last, overlap)
    return chunks


def _split_blocks(text: str) -> Iterator[CharSpan]:
    """Yield parts of a text that can be tokenized separately. They end at a line break if possible, or at a space."""
    start = 0
    while start < len(text):
        end = start + BLOCK_CHARS
        if end < len(text):
            position = text.rfind("\n", start, end)
            position = position if position > start else text.rfind(" ", start, end)
            end = position if position > start else end
        yield start, min(end, len(text))
        start = end


def _token_spans(text: str, block: CharSpan, tokenize: Tokenize) -> Iterator[CharSpan]:
    start, end = block
    for left, right in tokenize(text[start:end]):
        if right > left:
            yield start + left, start + right


def _cut_rank(text: str, before: int, after: int) -> int:
    """Return how suitable it is to cut between a token that ends at `before` and one that starts at `after`."""
    gap = text[before:after]
    if not gap.strip() and gap.count("\n") > 1:
        return PARAGRAPH
    if "\n" in gap and text[after] == "#":  # A Markdown heading.
        return PARAGRAPH
    if not gap:
        return SENTENCE if before and text[before - 1] in "。！？" else INSIDE_WORD
    end = before
    while end > 1 and text[end - 1] in CLOSING_MARKS:
        end -= 1
    return SENTENCE if end and text[end - 1] in SENTENCE_ENDS else WORD


def _best_cut(ranks: Sequence[int], first: int, limit: int) -> int:
    """Return the end of the chunk that starts at token `first`: the last of the best positions in its second half."""
    if limit >= len(ranks):
        return len(ranks)
    least = first + max(1, (limit - first) // 2)
    return max(range(least, limit + 1), key=lambda position: (ranks[position], position))


def _next_start(ranks: Sequence[int], first: int, last: int, overlap: int) -> int:
    """Return the first token of the next chunk: `overlap` tokens back, but at the beginning of a word."""
    start = max(last - overlap, first + 1)
    while start < last and ranks[start] == INSIDE_WORD:
        start += 1
    return start
