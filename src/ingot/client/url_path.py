"""URL paths that contain names chosen by users."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from ingot.kernel.errors import InvalidInput

INVALID_SEGMENTS: Final = frozenset({"", ".", ".."})  # Proxies and HTTP libraries remove these from a path.


def url_path(*parts: str) -> str:
    """Return a path with each part quoted as one segment. Raises `InvalidInput` for a part that cannot be one."""
    for part in parts:
        if part in INVALID_SEGMENTS:
            raise InvalidInput(f"{part!r} is not a valid ID or name", hint="Check the ID or name.")
    return "".join(f"/{quote(part, safe='')}" for part in parts)
