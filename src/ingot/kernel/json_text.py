"""JSON text as it is kept: as received, and known to be readable again."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from ingot.kernel.errors import IngotError, InvalidInput

JSON_SPACE: Final = b" \t\n\r"
JSON_DEPTH_MAX: Final = 200  # What we take in, every reader of ours must be able to decode.
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def json_text(value: object, *, name: str, bytes_max: int, too_large: type[IngotError]) -> bytes:
    """JSON text as bytes: `bytes` are JSON text already, kept but for space around it; other values are encoded.

    `bytearray` and `memoryview` are taken as `bytes` are. JSON has no NaN and no infinity: as Python values they
    become `null`, in JSON text they are refused.
    """
    try:
        if isinstance(value, bytes):
            text = value.strip(JSON_SPACE)
        elif isinstance(value, bytearray | memoryview):
            text = bytes(value).strip(JSON_SPACE)
        else:
            text = _encode(value)
        if len(text) <= bytes_max:
            _decode(text)  # Encoded values too: a `Raw` inside them was never looked at.
    except (msgspec.MsgspecError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        raise InvalidInput(f"the {name} is not JSON: {error}") from error
    if len(text) > bytes_max:
        raise too_large(f"the {name} has {len(text)} bytes; the most is {bytes_max}")
    if text.count(b"[") + text.count(b"{") > JSON_DEPTH_MAX and _nesting_depth(text) > JSON_DEPTH_MAX:
        raise InvalidInput(f"the {name} is nested deeper than {JSON_DEPTH_MAX} levels")
    return text


def json_digest(text: bytes) -> bytes:
    """The digest of JSON text in sorted-key form, equal for texts that mean the same."""
    return hashlib.sha256(msgspec.json.encode(_decode(text), order="sorted")).digest()


def _nesting_depth(text: bytes) -> int:
    """How deep JSON text is nested, found level by level, without recursion."""
    deepest, level = 0, [_decode(text)]
    while level := [value for value in level if isinstance(value, dict | list)]:
        deepest += 1
        level = [inner for value in level for inner in (value.values() if isinstance(value, dict) else value)]
    return deepest
