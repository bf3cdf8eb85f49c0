"""IDs: UUIDv7 as text, so that later IDs sort after earlier ones."""

from __future__ import annotations

import re

import uuid_utils

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def new_id() -> str:
    """Return an ID greater than all IDs that this process has created before."""
    return str(uuid_utils.uuid7())


def is_id(text: str) -> bool:
    """Return whether `text` has the form of an ID from `new_id`."""
    return _UUID.fullmatch(text) is not None
