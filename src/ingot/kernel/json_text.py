"""JSON text for storage: kept as received, after a check that it can be decoded again."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from ingot.kernel.errors import IngotError, InvalidInput

JSON_SPACE: Final = b" \t\n\r"
JSON_DEPTH_MAX: Final = 200  # All decoders that read stored JSON must support this depth.
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def json_text(value: object, *, name: str, bytes_max: int, too_large: type[IngotError]) -> bytes:
    """Return a value as JSON text.

    `bytes`, `bytearray` and `memoryview` already contain JSON text; it is stripped of surrounding whitespace and
    otherwise unchanged. Other values are encoded. NaN and infinity become `null` as Python values and are rejected in
    JSON text, which cannot represent them.

    Raises `InvalidInput`, or `too_large` for more than `bytes_max` bytes.
    """
    try:
        if isinstance(value, bytes):
            text = value.strip(JSON_SPACE)
        elif isinstance(value, bytearray | memoryview):
            text = bytes(value).strip(JSON_SPACE)
        else:
            text = _encode(value)
        if len(text) <= bytes_max:
            _decode(text)  # Encoded values are checked too: they can contain a `Raw`, which the encoder does not check.
    except (msgspec.MsgspecError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        raise InvalidInput(f"{name} is not valid JSON: {error}") from error
    if len(text) > bytes_max:
        raise too_large(f"{name} must have at most {bytes_max} bytes, got {len(text)}")
    if text.count(b"[") + text.count(b"{") > JSON_DEPTH_MAX and _nesting_depth(text) > JSON_DEPTH_MAX:
        raise InvalidInput(f"{name} must not be nested deeper than {JSON_DEPTH_MAX} levels")
    return text


def json_digest(text: bytes) -> bytes:
    """Return a digest of JSON text with sorted keys, so that the order of keys and whitespace do not matter."""
    return hashlib.sha256(msgspec.json.encode(_decode(text), order="sorted")).digest()


def _nesting_depth(text: bytes) -> int:
    """Return how deep JSON text is nested. Works level by level, since recursion could overflow the stack."""
    deepest, level = 0, [_decode(text)]
    while level := [value for value in level if isinstance(value, dict | list)]:
        deepest += 1
        level = [inner for value in level for inner in (value.values() if isinstance(value, dict) else value)]
    return deepest
