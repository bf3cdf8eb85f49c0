"""Ids: UUIDv7 in its text form, so that ids made later sort later."""

from __future__ import annotations

import re

import uuid_utils

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def new_id() -> str:
    """Make an id greater than every id this process has made before."""
    return str(uuid_utils.uuid7())


def is_id(text: str) -> bool:
    """Tell whether `text` is written the way `new_id` writes ids."""
    return _UUID.fullmatch(text) is not None
