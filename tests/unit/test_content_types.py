"""Content types: which are accepted from clients, and which are sent to them."""

from __future__ import annotations

import pytest

from ingot.blobs.checks import content_type
from ingot.http.ranges import safe_content_type
from ingot.kernel.content_types import BINARY_CONTENT_TYPE, CONTENT_TYPE_CHARS_MAX, is_content_type
from ingot.kernel.errors import InvalidInput

VALID = (
    "a/b",
    "application/pdf",
    "application/vnd.api+json",
    "text/plain; charset=utf-8",
    'text/plain;charset="utf 8"\t;\tformat=flowed',
    "x/it's*100%|`~",
    f"a/{'b' * (CONTENT_TYPE_CHARS_MAX - 2)}",
)
INVALID = (
    "",
    "pdf",
    "a/",
    "/b",
    "a/b;",
    "a/b; c",
    "a/b; c=",
    "a/b\r\nset-cookie: c=d",
    "a/b;\r\n c=d",
    'a/b; c="\n"',
    'a/b; c="',
    "a/b\u00e9",
    f"a/{'b' * (CONTENT_TYPE_CHARS_MAX - 1)}",
)


@pytest.mark.parametrize("text", VALID)
def test_a_valid_content_type_is_stored_and_sent(text: str) -> None:
    assert is_content_type(text)
    assert content_type(text) == safe_content_type(text) == text


@pytest.mark.parametrize("text", INVALID)
def test_an_invalid_content_type_is_rejected_and_never_sent(text: str) -> None:
    assert not is_content_type(text)
    assert safe_content_type(text) == BINARY_CONTENT_TYPE
    if text:  # An empty header counts as missing.
        with pytest.raises(InvalidInput):
            content_type(text)
