"""Pages: a cursor fits the list that made it and nothing else."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.kernel.errors import InvalidInput
from ingot.kernel.pages import PAGE_ROWS_MAX, InvalidCursor, check_limit, decode_cursor, encode_cursor

words = st.text(st.characters(exclude_categories=["Cs"]))
bindings = st.lists(st.none() | words, max_size=4)


@given(words, bindings)
def test_a_cursor_gives_its_position_back_to_its_list(position: str, bound_to: list[str | None]) -> None:
    cursor = encode_cursor(position, bound_to=bound_to)
    assert decode_cursor(cursor, bound_to=bound_to) == position


@given(words, bindings, bindings)
def test_a_cursor_of_another_list_is_refused(position: str, one: list[str | None], other: list[str | None]) -> None:
    cursor = encode_cursor(position, bound_to=one)
    if one != other:
        with pytest.raises(InvalidCursor):
            decode_cursor(cursor, bound_to=other)


def test_values_that_only_look_alike_bind_differently() -> None:
    cursor = encode_cursor("1", bound_to=("jobs", "a", None))
    for other in (("jobs", None, "a"), ("jobs", "a", ""), ("jobs", "a"), ("jobsa", None), ("jobs", "a", "None")):
        with pytest.raises(InvalidCursor):
            decode_cursor(cursor, bound_to=other)


@given(words)
def test_what_nobody_made_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidCursor):
        decode_cursor(text, bound_to=("jobs",))


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"[1]", b'[1,"x"]', b'[1,"x","y","z"]', b'["1","x","y"]', b"\xff\xff", b"[" * 5000, b"null"],
)
def test_other_content_in_the_right_wrapping_is_refused(content: bytes) -> None:
    cursor = base64.urlsafe_b64encode(content).decode().rstrip("=")
    with pytest.raises(InvalidCursor) as caught:
        decode_cursor(cursor, bound_to=())
    assert caught.value.hint


def test_a_cursor_of_another_version_is_refused() -> None:
    cursor = encode_cursor("p", bound_to=())
    text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).replace(b"[1,", b"[2,")
    with pytest.raises(InvalidCursor):
        decode_cursor(base64.urlsafe_b64encode(text).decode(), bound_to=())


@given(words, bindings)
def test_a_cursor_can_stand_in_a_url_as_it_is(position: str, bound_to: list[str | None]) -> None:
    cursor = encode_cursor(position, bound_to=bound_to)
    assert cursor.isascii()
    assert cursor.replace("-", "").replace("_", "").isalnum()


@pytest.mark.parametrize("limit", [1, 50, PAGE_ROWS_MAX])
def test_a_limit_within_bounds_is_taken(limit: int) -> None:
    assert check_limit(limit) == limit


@pytest.mark.parametrize("limit", [0, -1, PAGE_ROWS_MAX + 1])
def test_a_limit_out_of_bounds_is_refused(limit: int) -> None:
    with pytest.raises(InvalidInput):
        check_limit(limit)
