"""What can be a key, and what a name tells of bytes."""

from __future__ import annotations

from mimetypes import MimeTypes

import pytest

from ingot.blobs import checks
from ingot.kernel.content_types import BINARY_CONTENT_TYPE
from ingot.kernel.errors import InvalidInput


@pytest.mark.parametrize(
    "key", ["a", "a/b.c", "a b", "\u00fc/\u4e2d", "a\u200db", "a\u2028b", "a\u00a0b", "\U0001f600"]
)
def test_what_people_write_can_be_a_key(key: str) -> None:
    assert checks.key(key) == key


@pytest.mark.parametrize("key", ["a\tb", "a\x1f", "a\x7f", "\x85b", "\u00fc\x9f"])
def test_control_characters_cannot_be_in_a_key(key: str) -> None:
    with pytest.raises(InvalidInput):
        checks.key(key)


@pytest.mark.parametrize(
    "name", ["a", "a/b", "", "a.pdf", "a.PDF", "a.b/c", "a.tar.gz", ".pdf", "a.", "data:text/html,a", "x:y"]
)
def test_a_name_tells_what_python_knows_of_it(name: str) -> None:
    assert checks.guess_content_type(name) == (MimeTypes().guess_type(name)[0] or BINARY_CONTENT_TYPE)


def test_markdown_is_known() -> None:
    assert checks.guess_content_type("handbook.md") == "text/markdown"
