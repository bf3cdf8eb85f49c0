"""What is secret by its looks: wherever one of our secrets got to, it is not shown there."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

# A token, the secret of a worker, of a session or of a login, and what is left of one that was cut.
_SECRET: Final = re.compile(r"ingot[a-z]?_[0-9A-Za-z]{20,}")
INSTEAD: Final = "ingot_…"


def hide(text: str) -> str:
    """The text without the secrets in it."""
    return _SECRET.sub(INSTEAD, text)


def is_secret(text: str) -> bool:
    """Whether there is a secret in the text."""
    return _SECRET.search(text) is not None


class Unshown(msgspec.Struct, frozen=True):
    """Something that holds a secret: wherever it is written out by mistake, only its kind is."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []
