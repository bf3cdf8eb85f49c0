"""Splitting long texts into chunks: where they are split, and that nothing is lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as some

from ingot.worker.handlers.vectors import chunks
from ingot.worker.handlers.vectors.chunks import split_text


def tokenize(text: str) -> list[tuple[int, int]]:
    """The positions of words and punctuation characters."""
    return [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]


def split(text: str, tokens_max: int, overlap: int = 0) -> list[str]:
    return [
        text[chunk.start : chunk.end] for chunk in split_text(text, tokenize, tokens_max=tokens_max, overlap=overlap)
    ]


def test_a_short_text_is_one_chunk() -> None:
    assert split("One. Two.\n\nThree.", 10) == ["One. Two.\n\nThree."]


@pytest.mark.parametrize("text", ["", " \n\n "])
def test_an_empty_text_has_no_chunks(text: str) -> None:
    assert split(text, 10) == []


def test_a_text_is_split_between_paragraphs_first() -> None:
    assert split("a b c d.\n\ne f. g h i.", 9) == ["a b c d.", "e f. g h i."]


def test_a_heading_starts_a_chunk() -> None:
    assert split("a b c d e\n# f\ng h i j k", 9) == ["a b c d e", "# f\ng h i j k"]


def test_a_paragraph_is_split_between_sentences() -> None:
    assert split('a b c d? "e f!" g h i j', 12) == ['a b c d? "e f!"', "g h i j"]


def test_a_sentence_is_split_between_words() -> None:
    assert split("a b c-d e", 3) == ["a b", "c-d", "e"]


def test_chunks_overlap_by_whole_words() -> None:
    assert split("a b c d e f g h", 4, overlap=2) == ["a b c d", "c d e f", "e f g h"]


def test_a_text_without_spaces_is_split() -> None:
    text_chunks = split_text(
        "字" * 50, lambda text: [(at, at + 1) for at in range(len(text))], tokens_max=20, overlap=5
    )
    assert [(chunk.start, chunk.end) for chunk in text_chunks] == [(0, 20), (20, 40), (40, 50)]


@given(some.text(alphabet="ab .\n#!-", max_size=200), some.integers(2, 12), some.integers(0, 6), some.integers(5, 60))
def test_no_token_is_lost_and_no_chunk_is_too_long(text: str, tokens_max: int, overlap: int, block: int) -> None:
    overlap = min(overlap, tokens_max // 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "BLOCK_CHARS", block)
        text_chunks = split_text(text, tokenize, tokens_max=tokens_max, overlap=overlap)
    assert all(1 <= chunk.tokens <= tokens_max for chunk in text_chunks)
    covered = {at for chunk in text_chunks for at in range(chunk.start, chunk.end)}
    assert all(at in covered or text[at].isspace() for at in range(len(text)))
    assert [chunk.start for chunk in text_chunks] == sorted({chunk.start for chunk in text_chunks})
