"""Limits on how many jobs run at once, and limit keys, which are derived from payloads."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Any, Final

import msgspec

PLACEHOLDER: Final = re.compile(r"\{([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\}")
LIMIT_KEY_CHARS_MAX: Final = 128
_decode = msgspec.json.Decoder().decode


def render_limit_key(template: str, payload: bytes) -> str:
    """Return the limit key of a job: the template, with each placeholder replaced by the payload field that it names.

    The key is empty if the payload has none of these fields. Strings are inserted unchanged, other values as JSON. A
    long key is replaced by its digest.
    """
    try:
        payload_value = _decode(payload)
    except (msgspec.MsgspecError, RecursionError):
        return ""
    field_texts = [_text_at(payload_value, path) for path in _placeholder_paths(template)]
    if all(text is None for text in field_texts):
        return ""
    next_texts = iter(field_texts)
    key = PLACEHOLDER.sub(lambda _: next(next_texts) or "", template).replace("\x00", "")
    return key if len(key) <= LIMIT_KEY_CHARS_MAX else hashlib.sha256(key.encode()).hexdigest()


@lru_cache(maxsize=1024)
def _placeholder_paths(template: str) -> list[list[str]]:
    return [path.split(".") for path in PLACEHOLDER.findall(template)]


def _text_at(value: Any, path: list[str]) -> str | None:
    """Return the field of a payload at this path as text, or `None` if it does not exist or is null."""
    for name in path:
        if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        elif isinstance(value, dict):
            value = value.get(name)
        else:
            return None
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value, order="sorted").decode()


class ConcurrencyLimits(msgspec.Struct, frozen=True, gc=False):
    """How many jobs may run at once: of the tenant, of its type, and of its type and limit key. `None` is no limit."""

    tenant: int | None = None
    type: int | None = None
    key: int | None = None
