"""Validation of published events. Each check returns the valid value or raises `InvalidInput`."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from ingot.events.errors import EventTooLarge
from ingot.kernel.errors import InvalidInput
from ingot.kernel.json_text import json_digest, json_text
from ingot.kernel.validation import check_length, check_text

NAME_CHARS_MAX: Final = 128
KEY_CHARS_MAX: Final = 512
DATA_BYTES_MAX: Final = 64 * 1024
RESERVED_FAMILIES: Final = frozenset({"audit", "batch", "blob", "ingot", "job", "quota", "stats", "trigger", "worker"})
RESERVED_NAMES: Final = frozenset({"end", "error", "gap", "message", "open"})  # Used by streams and browsers.
NAME_HINT: Final = (
    f"Use up to {NAME_CHARS_MAX} lower-case letters, digits, - and _. Separate segments with dots, as in order.paid."
)
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*(\.[a-z0-9][a-z0-9_-]*)*")


def tenant_id(value: object) -> str:
    """Return a tenant ID. The tenant need not exist."""
    tenant_id = check_text(value, name="tenant", hint="Pass tenant.id, a string.")
    if not tenant_id.isprintable():
        raise InvalidInput("the tenant ID has characters that are not allowed", hint="Pass tenant.id.")
    return tenant_id


def event_name(value: object) -> str:
    """Return a valid name for an event that a client publishes."""
    name = check_text(value, name="event name", hint=NAME_HINT)
    if len(name) > NAME_CHARS_MAX or not _NAME.fullmatch(name):
        raise InvalidInput(f"the event name {name[:64]!r} is not valid", hint=NAME_HINT)
    family = name.partition(".")[0]
    if family in RESERVED_FAMILIES or name in RESERVED_NAMES:
        raise InvalidInput(
            f"the event name {name!r} is reserved for Ingot",
            hint=f"Do not use the names {', '.join(sorted(RESERVED_NAMES))}, nor names that begin with one of"
            f" {', '.join(sorted(RESERVED_FAMILIES))}.",
        )
    return name


def event_data(value: object) -> bytes:
    """Return the data of an event as JSON text."""
    return json_text(value, name="data", bytes_max=DATA_BYTES_MAX, too_large=EventTooLarge)


def dedupe_key(value: object) -> str | None:
    """Return a valid dedupe key, or `None`."""
    if value is None:
        return None
    return check_length(check_text(value, name="dedupe_key"), name="dedupe_key", chars_max=KEY_CHARS_MAX)


def event_digest(name: str, data: bytes) -> bytes:
    """Return a digest of the name and data of an event. Data with the same meaning has the same digest."""
    return hashlib.sha256(name.encode() + b"\n" + json_digest(data)).digest()
