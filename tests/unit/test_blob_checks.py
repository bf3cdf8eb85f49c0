"""Valid keys, and content types guessed from names."""

from __future__ import annotations

from mimetypes import MimeTypes

import pytest

from ingot.blobs import checks
from ingot.kernel.content_types import BINARY_CONTENT_TYPE
from ingot.kernel.errors import InvalidInput


@pytest.mark.parametrize(
    "key", ["a", "a/b.c", "a b", "\u00fc/\u4e2d", "a\u200db", "a\u2028b", "a\u00a0b", "\U0001f600"]
)
def test_printable_text_is_a_valid_key(key: str) -> None:
    assert checks.key(key) == key


@pytest.mark.parametrize("key", ["a\tb", "a\x1f", "a\x7f", "\x85b", "\u00fc\x9f"])
def test_control_characters_cannot_be_in_a_key(key: str) -> None:
    with pytest.raises(InvalidInput):
        checks.key(key)


@pytest.mark.parametrize(
    "name", ["a", "a/b", "", "a.pdf", "a.PDF", "a.b/c", "a.tar.gz", ".pdf", "a.", "data:text/html,a", "x:y"]
)
def test_the_guessed_content_type_is_that_of_the_standard_library(name: str) -> None:
    assert checks.guess_content_type(name) == (MimeTypes().guess_type(name)[0] or BINARY_CONTENT_TYPE)


def test_the_content_type_of_markdown_is_guessed() -> None:
    assert checks.guess_content_type("handbook.md") == "text/markdown"
