"""Checks of job input, with many more values than the conformance suite sends."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.jobs import Definition, PayloadTooLarge, checks
from ingot.kernel.clock import MICROS
from ingot.kernel.errors import InvalidInput
from ingot.kernel.validation import format_value

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def _json(value: object, bytes_max: int = 64 * 1024) -> bytes:
    return checks.json_bytes(value, name="payload", bytes_max=bytes_max)


@given(values)
def test_a_json_value_is_encoded_without_changing_it(value: Any) -> None:
    assert json.loads(_json(value)) == value


@given(values, st.sampled_from([None, 1, 3]))
def test_json_text_is_stored_unchanged(value: Any, indent: int | None) -> None:
    text = json.dumps(value, indent=indent).encode()
    assert _json(text) == text


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_valid_json_or_rejected(text: bytes) -> None:
    try:
        stored = _json(text)
    except InvalidInput:
        return
    assert stored == text.strip(b" \t\n\r")
    json.loads(stored)


@given(values)
def test_the_order_of_keys_and_whitespace_do_not_change_a_digest(value: Any) -> None:
    plain = json.dumps(value).encode()
    spaced = json.dumps(_reversed(value), indent=2, ensure_ascii=False).encode()
    assert checks.json_digest(plain) == checks.json_digest(spaced)


@pytest.mark.parametrize(
    ("first", "second"),
    [(b"1", b"2"), (b"1", b'"1"'), (b"[1,2]", b"[2,1]"), (b'{"a":1}', b'{"b":1}'), (b"null", b"{}"), (b"[]", b"{}")],
)
def test_different_json_values_have_different_digests(first: bytes, second: bytes) -> None:
    assert checks.json_digest(first) != checks.json_digest(second)


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize(("levels", "fits"), [(1, True), (199, True), (200, True), (201, False), (1000, False)])
def test_the_depth_of_nesting_is_limited(opening: bytes, levels: int, fits: bool) -> None:
    closing = b"]" if opening == b"[" else b"}"
    inner = b"" if opening == b"[" else b"1"
    text = opening * levels + inner + closing * levels
    if fits:
        assert _json(text) == text
    else:
        with pytest.raises(InvalidInput):
            _json(text)


def test_brackets_inside_a_string_do_not_count_as_nesting() -> None:
    text = b'"' + b"[{" * 5000 + b'"'
    assert _json(text) == text


def test_many_shallow_values_do_not_count_as_nesting() -> None:
    text = b"[" + b",".join([b"[]"] * 5000) + b"]"
    assert _json(text) == text


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_bytes_type_is_accepted_as_json_text(kind: Callable[[bytes], object]) -> None:
    assert _json(kind(b' {"a": 1}\n')) == b'{"a": 1}'
    with pytest.raises(InvalidInput):
        _json(kind(b"{"))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_numbers_become_null(value: float) -> None:
    assert _json([value]) == b"[null]"


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("boom", "boom"),
        ("", ""),
        (ValueError("boom"), "ValueError: boom"),
        (KeyError("a"), "KeyError: 'a'"),
        (ValueError(), "ValueError"),
        (_Unprintable(), "_Unprintable"),
        (ValueError("a\x00\ud800"), "ValueError: a\ufffd?"),
    ],
)
def test_an_error_is_converted_to_text(error: str | BaseException, text: str) -> None:
    assert checks.error_text(error) == text


@pytest.mark.parametrize(
    "value", [10**5000, -(10**5000), "x" * 1000, object()], ids=["long", "negative", "text", "object"]
)
def test_every_value_has_a_short_representation(value: object) -> None:
    assert len(format_value(value)) <= 65


def test_subclasses_of_str_and_int_become_plain_values() -> None:
    class Text(str):
        __slots__ = ()

    class Level(IntEnum):
        HIGH = 2

    assert type(checks.job_type(Text("a.finer.type"))) is str
    assert type(checks.tenant_id(Text("t"))) is str
    assert type(checks.priority(Level.HIGH)) is int
    assert type(checks.definition(Definition(type="a", priority=Level.HIGH)).priority) is int


def test_a_time_before_1970_becomes_zero() -> None:
    assert checks.timestamp(datetime(1900, 1, 1, tzinfo=UTC)) == 0


@pytest.mark.parametrize("size", [9, 10, 11])
def test_the_size_of_json_is_limited(size: int) -> None:
    text = b'"' + b"x" * (size - 2) + b'"'
    if size <= 10:
        assert _json(text, 10) == text
    else:
        with pytest.raises(PayloadTooLarge):
            _json(text, 10)


@given(st.text(max_size=40))
def test_arbitrary_text_is_a_valid_short_text_or_rejected(text: str) -> None:
    try:
        checked = checks.short_text(text, name="key", chars_max=20)
    except InvalidInput:
        assert not 1 <= len(text) <= 20 or "\x00" in text or not _encodes(text)
    else:
        assert checked == text
        assert _encodes(text)


@given(st.text(st.characters(), max_size=200))
def test_a_cleaned_error_text_can_be_stored_and_cleaning_is_idempotent(text: str) -> None:
    clean = checks.error_text(text)
    assert _encodes(clean)
    assert "\x00" not in clean
    assert checks.error_text(clean) == clean


@given(st.lists(st.text("abc", min_size=1, max_size=2), max_size=20))
def test_tags_are_unique_and_sorted(tags: list[str]) -> None:
    assert checks.tags(tags) == tuple(sorted(set(tags)))


@given(st.floats(0, checks.DELAY_DAYS_MAX * 86_400))
def test_a_delay_becomes_microseconds(seconds: float) -> None:
    assert checks.delay(seconds) == round(seconds * MICROS)


@given(st.timedeltas(timedelta(0), timedelta(days=checks.DELAY_DAYS_MAX)))
def test_a_delay_keeps_its_microseconds(delay: timedelta) -> None:
    assert abs(checks.delay(delay) - delay // timedelta(microseconds=1)) <= 1


@given(st.floats() | st.integers(-(10**400), 10**400))
def test_an_arbitrary_number_is_a_valid_delay_or_rejected(seconds: float) -> None:
    try:
        micros = checks.delay(seconds)
    except InvalidInput:
        assert not 0 <= seconds <= checks.DELAY_DAYS_MAX * 86_400
    else:
        assert 0 <= micros <= checks.DELAY_DAYS_MAX * 86_400 * MICROS


@pytest.mark.parametrize("type", ["a", "A9", "pdf.convert", "x:y/z-1_2", "a" * 128])
def test_valid_job_types_are_accepted(type: str) -> None:
    assert checks.job_type(type) == type


def test_the_types_of_a_claim_are_unique_and_keep_their_order() -> None:
    assert checks.claim_types(["b", "a", "b"]) == ("b", "a")


def _reversed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _reversed(inner) for key, inner in reversed(value.items())}
    return [_reversed(inner) for inner in value] if isinstance(value, list) else value


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
