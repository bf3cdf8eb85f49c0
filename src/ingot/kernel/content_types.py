"""Content types, as RFC 9110 writes them."""

from __future__ import annotations

import re
from typing import Final

BINARY: Final = "application/octet-stream"
CHARS_MAX: Final = 255
_TOKEN: Final = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_TYPE: Final = re.compile(rf'{_TOKEN}/{_TOKEN}(?:[ \t]*;[ \t]*{_TOKEN}=(?:{_TOKEN}|"[ !#-\[\]-~]*"))*')


def is_content_type(text: str) -> bool:
    """Whether it is one, of a length that we keep and tell."""
    return len(text) <= CHARS_MAX and _TYPE.fullmatch(text) is not None
