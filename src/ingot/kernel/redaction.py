"""What is secret by its looks: wherever one of our secrets got to, it is not shown there."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

# A token, the secret of a worker, of a session or of a login, and what is left of one that was cut.
_SECRET: Final = re.compile(r"ingot[a-z]?_[0-9A-Za-z]{20,}")
REDACTED: Final = "ingot_…"


def redact(text: str) -> str:
    """The text without the secrets in it."""
    return _SECRET.sub(REDACTED, text)


def contains_secret(text: str) -> bool:
    """Whether there is a secret in the text."""
    return _SECRET.search(text) is not None


class NoRepr(msgspec.Struct, frozen=True):
    """Something that holds a secret: wherever it is written out by mistake, only its kind is."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []
