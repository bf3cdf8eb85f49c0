"""The syntax of content types (RFC 9110)."""

from __future__ import annotations

import re
from typing import Final

BINARY_CONTENT_TYPE: Final = "application/octet-stream"
CONTENT_TYPE_CHARS_MAX: Final = 255
_TOKEN: Final = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_CONTENT_TYPE: Final = re.compile(rf'{_TOKEN}/{_TOKEN}(?:[ \t]*;[ \t]*{_TOKEN}=(?:{_TOKEN}|"[ !#-\[\]-~]*"))*')


def is_content_type(text: str) -> bool:
    """Return whether the text is a valid content type of at most `CONTENT_TYPE_CHARS_MAX` characters."""
    return len(text) <= CONTENT_TYPE_CHARS_MAX and _CONTENT_TYPE.fullmatch(text) is not None
