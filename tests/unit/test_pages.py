"""Pages: a cursor is valid only for the list that created it."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.kernel.errors import InvalidInput
from ingot.kernel.pages import PAGE_ROWS_MAX, InvalidCursor, check_limit, decode_cursor, encode_cursor

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
bindings = st.lists(st.none() | texts, max_size=4)


@given(texts, bindings)
def test_a_cursor_decodes_to_its_position_in_its_list(position: str, bound_to: list[str | None]) -> None:
    cursor = encode_cursor(position, bound_to=bound_to)
    assert decode_cursor(cursor, bound_to=bound_to) == position


@given(texts, bindings, bindings)
def test_a_cursor_of_another_list_is_rejected(position: str, own: list[str | None], other: list[str | None]) -> None:
    cursor = encode_cursor(position, bound_to=own)
    if own != other:
        with pytest.raises(InvalidCursor):
            decode_cursor(cursor, bound_to=other)


def test_a_forged_cursor_with_nul_is_rejected() -> None:
    with pytest.raises(InvalidCursor):
        decode_cursor(encode_cursor("a\x00b", bound_to=["list"]), bound_to=["list"])


def test_similar_bindings_are_distinguished() -> None:
    cursor = encode_cursor("1", bound_to=("jobs", "a", None))
    for other in (("jobs", None, "a"), ("jobs", "a", ""), ("jobs", "a"), ("jobsa", None), ("jobs", "a", "None")):
        with pytest.raises(InvalidCursor):
            decode_cursor(cursor, bound_to=other)


@given(texts)
def test_arbitrary_text_is_rejected_as_a_cursor(text: str) -> None:
    with pytest.raises(InvalidCursor):
        decode_cursor(text, bound_to=("jobs",))


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"[1]", b'[1,"x"]', b'[1,"x","y","z"]', b'["1","x","y"]', b"\xff\xff", b"[" * 5000, b"null"],
)
def test_valid_base64_of_other_content_is_rejected(content: bytes) -> None:
    cursor = base64.urlsafe_b64encode(content).decode().rstrip("=")
    with pytest.raises(InvalidCursor) as caught:
        decode_cursor(cursor, bound_to=())
    assert caught.value.hint


def test_a_cursor_of_another_version_is_rejected() -> None:
    cursor = encode_cursor("p", bound_to=())
    text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).replace(b"[1,", b"[2,")
    with pytest.raises(InvalidCursor):
        decode_cursor(base64.urlsafe_b64encode(text).decode(), bound_to=())


@given(texts, bindings)
def test_a_cursor_needs_no_escaping_in_a_url(position: str, bound_to: list[str | None]) -> None:
    cursor = encode_cursor(position, bound_to=bound_to)
    assert cursor.isascii()
    assert cursor.replace("-", "").replace("_", "").isalnum()


@pytest.mark.parametrize("limit", [1, 50, PAGE_ROWS_MAX])
def test_a_limit_within_bounds_is_accepted(limit: int) -> None:
    assert check_limit(limit) == limit


@pytest.mark.parametrize("limit", [0, -1, PAGE_ROWS_MAX + 1])
def test_a_limit_out_of_bounds_is_rejected(limit: int) -> None:
    with pytest.raises(InvalidInput):
        check_limit(limit)
