"""Limit keys: rendering a template with a payload."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.jobs.limits import LIMIT_KEY_CHARS_MAX, render_limit_key

PAYLOAD = msgspec.json.encode(
    {"account": {"id": "x", "2": "two"}, "files": ["a", {"name": "b"}], "n": 5, "yes": True, "none": None, "empty": ""}
)


@pytest.mark.parametrize(
    ("template", "key"),
    [
        ("{n}", "5"),
        ("{account.id}", "x"),
        ("{account.2}", "two"),
        ("{files.0}", "a"),
        ("{files.1.name}", "b"),
        ("{yes}", "true"),
        ("{account}", '{"2":"two","id":"x"}'),
        ("{files}", '["a",{"name":"b"}]'),
        ("account-{account.id}/{n}", "account-x/5"),
        ("{missing}", ""),
        ("account-{missing}", ""),
        ("{none}", ""),
        ("{empty}", ""),
        ("{account.id}-{missing}", "x-"),
        ("{missing}-{account.id}", "-x"),
        ("{files.2}", ""),
        ("{files.name}", ""),
        ("{files.-1}", ""),
        ("{n.deeper}", ""),
        ("{account.id.deeper}", ""),
    ],
)
def test_a_limit_key_is_the_template_with_values_of_the_payload(template: str, key: str) -> None:
    assert render_limit_key(template, PAYLOAD) == key


@pytest.mark.parametrize("payload", [b"null", b"5", b"[]", b'"text"', b"{}", b"not json"])
def test_a_payload_without_the_named_values_has_no_limit_key(payload: bytes) -> None:
    assert render_limit_key("key-{a}", payload) == ""


def test_a_long_limit_key_is_replaced_by_its_digest() -> None:
    texts = ["x" * LIMIT_KEY_CHARS_MAX, "x" * (LIMIT_KEY_CHARS_MAX + 1), "x" * 60_000, "y" * 60_000]
    keys = [render_limit_key("{a}", msgspec.json.encode({"a": text})) for text in texts]
    assert keys[0] == texts[0]
    assert [len(key) for key in keys[1:]] == [64, 64, 64]
    assert len(set(keys)) == 4


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(value=json_values, template=st.sampled_from(["{a}", "{a.b}", "{0}", "{a.0}-{b}", "x{a}y{a}"]))
def test_every_limit_key_is_short_and_can_be_stored(value: object, template: str) -> None:
    key = render_limit_key(template, msgspec.json.encode({"a": value, "b": value}))
    assert len(key) <= LIMIT_KEY_CHARS_MAX
    assert "\x00" not in key
    key.encode()


@given(value=st.dictionaries(st.text(max_size=5), st.integers(), min_size=2))
def test_equal_values_have_the_same_limit_key(value: dict[str, int]) -> None:
    reordered = dict(reversed(value.items()))
    assert render_limit_key("{a}", msgspec.json.encode({"a": value})) == render_limit_key(
        "{a}", msgspec.json.encode({"a": reordered})
    )
