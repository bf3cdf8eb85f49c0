"""Long texts in pieces: where they are cut, and that nothing is lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as some

from ingot.worker.handlers.vectors import chunks
from ingot.worker.handlers.vectors.chunks import split_text


def words(text: str) -> list[tuple[int, int]]:
    """Words and signs as tokens."""
    return [found.span() for found in re.finditer(r"\w+|[^\w\s]", text)]


def pieces(text: str, tokens_max: int, overlap: int = 0) -> list[str]:
    return [text[one.start : one.end] for one in split_text(text, words, tokens_max=tokens_max, overlap=overlap)]


def test_a_short_text_is_one_piece() -> None:
    assert pieces("One. Two.\n\nThree.", 10) == ["One. Two.\n\nThree."]


@pytest.mark.parametrize("text", ["", " \n\n "])
def test_nothing_has_no_pieces(text: str) -> None:
    assert pieces(text, 10) == []


def test_paragraphs_are_cut_apart_first() -> None:
    assert pieces("a b c d.\n\ne f. g h i.", 9) == ["a b c d.", "e f. g h i."]


def test_a_heading_begins_a_piece() -> None:
    assert pieces("a b c d e\n# f\ng h i j k", 9) == ["a b c d e", "# f\ng h i j k"]


def test_sentences_are_cut_apart_next() -> None:
    assert pieces('a b c d? "e f!" g h i j', 12) == ['a b c d? "e f!"', "g h i j"]


def test_words_are_cut_apart_otherwise_and_never_within() -> None:
    assert pieces("a b c-d e", 3) == ["a b", "c-d", "e"]


def test_pieces_overlap_by_whole_words() -> None:
    assert pieces("a b c d e f g h", 4, overlap=2) == ["a b c d", "c d e f", "e f g h"]


def test_a_text_without_any_space_is_cut_nevertheless() -> None:
    found = split_text("字" * 50, lambda text: [(at, at + 1) for at in range(len(text))], tokens_max=20, overlap=5)
    assert [(one.start, one.end) for one in found] == [(0, 20), (20, 40), (40, 50)]


@given(some.text(alphabet="ab .\n#!-", max_size=200), some.integers(2, 12), some.integers(0, 6), some.integers(5, 60))
def test_no_token_is_lost_and_no_piece_is_too_long(text: str, tokens_max: int, overlap: int, block: int) -> None:
    overlap = min(overlap, tokens_max // 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "BLOCK_CHARS", block)
        found = split_text(text, words, tokens_max=tokens_max, overlap=overlap)
    assert all(1 <= one.tokens <= tokens_max for one in found)
    seen = {at for one in found for at in range(one.start, one.end)}
    assert all(at in seen or text[at].isspace() for at in range(len(text)))
    assert [one.start for one in found] == sorted({one.start for one in found})
