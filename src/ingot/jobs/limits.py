"""Limits on what runs at once: keys from payloads, and which bounds hold for a lane."""

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
    """The limit key of a job: the template with the parts of the payload it names, or nothing when there are none.

    Texts stand there as they are, other values as JSON. A long key is replaced by its digest.
    """
    try:
        value = _decode(payload)
    except (msgspec.MsgspecError, RecursionError):
        return ""
    parts = [_value_at(value, path) for path in _placeholder_paths(template)]
    if all(part is None for part in parts):
        return ""
    found = iter(parts)
    key = PLACEHOLDER.sub(lambda _: next(found) or "", template).replace("\x00", "")
    return key if len(key) <= LIMIT_KEY_CHARS_MAX else hashlib.sha256(key.encode()).hexdigest()


@lru_cache(maxsize=1024)
def _placeholder_paths(template: str) -> list[list[str]]:
    return [path.split(".") for path in PLACEHOLDER.findall(template)]


def _value_at(value: Any, path: list[str]) -> str | None:
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
    """How many jobs may run at once: of the tenant, of it and this type, and of these and the same key."""

    tenant: int | None = None
    type: int | None = None
    key: int | None = None
