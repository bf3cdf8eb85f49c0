"""Validation of keys, digests, content types and file names before anything is stored."""

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
KEY_HINT: Final = (
    "Use a path such as reports/2026/march.pdf, without control characters. No segment can be empty, . or two dots."
)

# Only Python's own table and one addition. The mimetypes module would also read files of the machine, so that the same
# name would have different types on different machines.
_MIME_TYPES: Final = MimeTypes()
_MIME_TYPES.add_type("text/markdown", ".md")
_DIGEST_PATTERN: Final = re.compile(r"[0-9a-f]{64}")


def key(value: object) -> str:
    """Validate a key. Raises `InvalidInput`."""
    text = check_storable(check_text(value, name="key"), name="key")
    size = len(text.encode())
    if not 1 <= size <= KEY_BYTES_MAX:
        raise InvalidInput(f"the key must have 1 to {KEY_BYTES_MAX} bytes, got {size}", hint=KEY_HINT)
    if any(segment in ("", ".", "..") for segment in text.split("/")) or _has_control_characters(text):
        raise InvalidInput(f"{text[:64]!r} is not a valid key", hint=KEY_HINT)
    return text


def prefix(value: object) -> str:
    """Validate a prefix of keys; the empty one matches all keys. Raises `InvalidInput`."""
    text = check_storable(check_text(value, name="prefix"), name="prefix")
    size = len(text.encode())
    if size > KEY_BYTES_MAX:
        raise InvalidInput(f"the prefix must have at most {KEY_BYTES_MAX} bytes, got {size}")
    return text


def digest(value: object, *, name: str) -> str:
    """Validate a BLAKE3 or SHA-256 in hexadecimal. `name` is for the message. Raises `InvalidInput`."""
    text = check_text(value, name=name)
    if not _DIGEST_PATTERN.fullmatch(text):
        raise InvalidInput(f"the {name} must be 64 lower-case hexadecimal digits")
    return text


def is_digest(value: str) -> bool:
    """Return whether a text has the form of a blob ID."""
    return _DIGEST_PATTERN.fullmatch(value) is not None


def content_type(value: object | None) -> str:
    """Validate a content type; a missing one is `application/octet-stream`. Raises `InvalidInput`.

    The type is only stored and sent back: nothing compares it with the bytes.
    """
    if value is None or value == "":
        return BINARY_CONTENT_TYPE
    text = check_text(value, name="content type")
    if not is_content_type(text):
        raise InvalidInput(
            f"{text[:64]!r} is not a valid content type", hint="Send a type and a subtype, such as application/pdf."
        )
    return text


def guess_content_type(name: str) -> str:
    """Guess the content type of a file from its name."""
    if "." not in name and ":" not in name:  # A name without a suffix and without a URL scheme has no type to guess.
        return BINARY_CONTENT_TYPE
    return _MIME_TYPES.guess_type(name)[0] or BINARY_CONTENT_TYPE


def file_name(value: object, *, name: str = "original name") -> str:
    """Validate the name of a file and remove its folders. Raises `InvalidInput`."""
    path = check_length(check_text(value, name=name), name=name, chars_max=NAME_CHARS_MAX)
    base_name = path.replace("\\", "/").rpartition("/")[2]
    if base_name in ("", ".", "..") or _has_control_characters(base_name):
        raise InvalidInput(f"{path[:64]!r} is not a valid file name", hint="Send a name such as report.pdf.")
    return base_name


def if_match(value: str | None) -> str | None:
    """Parse an `If-Match` header into the blob ID of its ETag, or `*`. Raises `InvalidInput`."""
    if value is None or value.strip() == ANY_BLOB:
        return None if value is None else ANY_BLOB
    blob_id = value.strip().removeprefix('"').removesuffix('"')
    if not is_digest(blob_id):
        raise InvalidInput(
            "If-Match must be the ETag of a blob or *", hint='Send the ETag in quotes, as in If-Match: "…", or *.'
        )
    return blob_id


def _has_control_characters(value: str) -> bool:
    return not value.isprintable() and any(unicodedata.category(char) == "Cc" for char in value)
