"""Where things are on the server: names that people give, made into parts of a path."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from ingot.kernel.errors import InvalidInput

INVALID_SEGMENTS: Final = frozenset({"", ".", ".."})  # What a path loses on its way.


def url_path(*parts: str) -> str:
    """The path of something, whatever its name has in it. Raises `InvalidInput` for a name that no path can hold."""
    for part in parts:
        if part in INVALID_SEGMENTS:
            raise InvalidInput(f"{part!r} is the name of nothing", hint="Check the id.")
    return "".join(f"/{quote(part, safe='')}" for part in parts)
