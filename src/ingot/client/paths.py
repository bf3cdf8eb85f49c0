"""Where things are on the server: names that people give, made into parts of a path."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from ingot.kernel.errors import InvalidInput

NOWHERE: Final = frozenset({"", ".", ".."})  # What a path loses on its way.


def at(*parts: str) -> str:
    """The path of something, whatever its name has in it. Raises `InvalidInput` for a name that no path can hold."""
    for part in parts:
        if part in NOWHERE:
            raise InvalidInput(f"{part!r} is the name of nothing", hint="Check the id.")
    return "".join(f"/{quote(part, safe='')}" for part in parts)
