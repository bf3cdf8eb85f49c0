"""Recognition and redaction of the secrets that Ingot issues, by their prefix."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

# A token, or the secret of a worker, session or login. Truncated ones match too.
_SECRET: Final = re.compile(r"ingot[a-z]?_[0-9A-Za-z]{20,}")
REDACTED: Final = "ingot_…"


def redact(text: str) -> str:
    """Return the text with all secrets replaced by `REDACTED`."""
    return _SECRET.sub(REDACTED, text)


def contains_secret(text: str) -> bool:
    """Return whether the text contains a secret."""
    return _SECRET.search(text) is not None


class NoRepr(msgspec.Struct, frozen=True):
    """A base class for structs that hold secrets. Their `repr` shows only the class name."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []
