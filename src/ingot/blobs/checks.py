"""Checks at the door: what is refused has a name and a hint, and changes nothing."""

from __future__ import annotations

import re
import unicodedata
from mimetypes import MimeTypes
from typing import Final

from ingot.kernel.content_types import BINARY_CONTENT_TYPE, is_content_type
from ingot.kernel.errors import InvalidInput
from ingot.kernel.validation import check_length, check_storable, check_text

KEY_BYTES_MAX: Final = 1024
NAME_CHARS_MAX: Final = 255
ANY_BLOB: Final = "*"
KEY_HINT: Final = "A key is a path as in reports/2026/march.pdf: no empty segment, no . or .., no control characters."
_MIME_TYPES: Final = MimeTypes()  # Those that Python knows, and one more: no file of the machine has a say.
_MIME_TYPES.add_type("text/markdown", ".md")
_DIGEST_PATTERN: Final = re.compile(r"[0-9a-f]{64}")


def key(value: object) -> str:
    """A name that a tenant can give a blob."""
    known = check_storable(check_text(value, name="key"), name="key")
    size = len(known.encode())
    if not 1 <= size <= KEY_BYTES_MAX:
        raise InvalidInput(f"the key has {size} bytes; it goes from 1 to {KEY_BYTES_MAX}", hint=KEY_HINT)
    if any(segment in ("", ".", "..") for segment in known.split("/")) or _has_control_characters(known):
        raise InvalidInput(f"{known[:64]!r} cannot be a key", hint=KEY_HINT)
    return known


def prefix(value: object) -> str:
    """How keys begin; the empty text is how all do."""
    known = check_storable(check_text(value, name="prefix"), name="prefix")
    if len(known.encode()) > KEY_BYTES_MAX:
        raise InvalidInput(f"the prefix has more than {KEY_BYTES_MAX} bytes")
    return known


def digest(value: object, *, name: str) -> str:
    """A digest as we write it."""
    known = check_text(value, name=name)
    if not _DIGEST_PATTERN.fullmatch(known):
        raise InvalidInput(f"the {name} is not 64 lower-case hexadecimal digits")
    return known


def is_digest(value: str) -> bool:
    """Whether it can be the id of a blob."""
    return _DIGEST_PATTERN.fullmatch(value) is not None


def content_type(value: object | None) -> str:
    """What the bytes are said to be; nobody relies on it."""
    if value is None or value == "":
        return BINARY_CONTENT_TYPE
    known = check_text(value, name="content type")
    if not is_content_type(known):
        raise InvalidInput(f"{known[:64]!r} is no content type", hint="Write it as in application/pdf.")
    return known


def guess_content_type(name: str) -> str:
    """What the bytes of a file with this name mostly are."""
    if "." not in name and ":" not in name:  # Only what ends with one, or is a URL, tells anything.
        return BINARY_CONTENT_TYPE
    return _MIME_TYPES.guess_type(name)[0] or BINARY_CONTENT_TYPE


def file_name(value: object, *, name: str = "original name") -> str:
    """The name of a file, without the folders it was in."""
    known = check_length(check_text(value, name=name), name=name, chars_max=NAME_CHARS_MAX)
    bare = known.replace("\\", "/").rpartition("/")[2]
    if bare in ("", ".", "..") or _has_control_characters(bare):
        raise InvalidInput(f"{known[:64]!r} cannot be the name of a file", hint="Write it as in report.pdf.")
    return bare


def if_match(value: str | None) -> str | None:
    """What a key has to hold: the id of a blob from its ETag, or `*`. Raises `InvalidInput`."""
    if value is None or value.strip() == ANY_BLOB:
        return None if value is None else ANY_BLOB
    known = value.strip().removeprefix('"').removesuffix('"')
    if not is_digest(known):
        raise InvalidInput("If-Match holds no ETag of a blob", hint='Send one, as in If-Match: "…", or *.')
    return known


def _has_control_characters(value: str) -> bool:
    return not value.isprintable() and any(unicodedata.category(char) == "Cc" for char in value)
