"""Checks of what is published: bad input is refused with a name and a hint before anything is written."""

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
RESERVED_NAMES: Final = frozenset({"end", "error", "gap", "message", "open"})  # Streams and browsers mean these.
NAME_HINT: Final = (
    f"Use up to {NAME_CHARS_MAX} lower-case letters, digits, - and _ in segments with dots between, as in order.paid."
)
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*(\.[a-z0-9][a-z0-9_-]*)*")


def tenant_id(value: object) -> str:
    """The id of a tenant, which may be nobody's."""
    known = check_text(value, name="tenant", hint="Pass tenant.id, a text.")
    if not known.isprintable():
        raise InvalidInput("the tenant has characters that no id has")
    return known


def event_name(value: object) -> str:
    """A name for a user's own event."""
    name = check_text(value, name="event name", hint=NAME_HINT)
    if len(name) > NAME_CHARS_MAX or not _NAME.fullmatch(name):
        raise InvalidInput(f"the event name {name[:64]!r} is not usable", hint=NAME_HINT)
    family = name.partition(".")[0]
    if family in RESERVED_FAMILIES or name in RESERVED_NAMES:
        raise InvalidInput(
            f"the event name {name!r} is one of Ingot's own",
            hint=f"Begin with another segment than {', '.join(sorted(RESERVED_FAMILIES))}.",
        )
    return name


def event_data(value: object) -> bytes:
    """The data of an event as JSON text."""
    return json_text(value, name="data", bytes_max=DATA_BYTES_MAX, too_large=EventTooLarge)


def dedupe_key(value: object) -> str | None:
    """A key that stands for one event, or none."""
    if value is None:
        return None
    return check_length(check_text(value, name="dedupe key"), name="dedupe key", chars_max=KEY_CHARS_MAX)


def event_digest(name: str, data: bytes) -> bytes:
    """The digest of what is published, equal for what means the same."""
    return hashlib.sha256(name.encode() + b"\n" + json_digest(data)).digest()
