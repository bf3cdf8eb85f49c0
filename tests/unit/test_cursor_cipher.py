"""The cipher of cursors: only the same binding and the same keys open what was sealed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.kernel.cursor_cipher import SEALED_CHARS_MAX, CursorCipher
from ingot.kernel.pages import InvalidCursor

KEY, OLD_KEY = b"k" * 32, b"o" * 32
bindings = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=3)


@given(st.binary(min_size=1, max_size=40), bindings, bindings)
def test_only_the_same_binding_opens_a_position(position: bytes, own: list[str], other: list[str]) -> None:
    cipher = CursorCipher([KEY])
    sealed = cipher.seal(position, bound_to=own)
    assert cipher.open(sealed, bound_to=own) == position
    assert sealed == cipher.seal(position, bound_to=own)
    if own != other:
        with pytest.raises(InvalidCursor):
            cipher.open(sealed, bound_to=other)


def test_older_keys_open_and_the_current_key_seals() -> None:
    sealed = CursorCipher([OLD_KEY]).seal(b"a", bound_to=("list",))
    assert CursorCipher([KEY, OLD_KEY]).open(sealed, bound_to=("list",)) == b"a"
    assert CursorCipher([KEY, OLD_KEY]).seal(b"a", bound_to=("list",)) != sealed
    with pytest.raises(InvalidCursor):
        CursorCipher([KEY]).open(sealed, bound_to=("list",))


@given(st.text(max_size=60) | st.text("abcAB01-_", max_size=60))
def test_a_forged_text_is_rejected(text: str) -> None:
    with pytest.raises(InvalidCursor):
        CursorCipher([KEY]).open(text, bound_to=("list",))


def test_a_changed_or_a_huge_text_is_rejected() -> None:
    cipher = CursorCipher([KEY])
    sealed = cipher.seal(b"a position", bound_to=("list",))
    changed = [sealed[:place] + ("A" if old != "A" else "B") + sealed[place + 1 :] for place, old in enumerate(sealed)]
    for text in (*changed, sealed[:-1], f"{sealed}A", f"{sealed}=", "A" * (SEALED_CHARS_MAX + 1)):
        with pytest.raises(InvalidCursor):
            cipher.open(text, bound_to=("list",))
