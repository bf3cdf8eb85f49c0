"""What both engines know of people."""

from __future__ import annotations

from typing import Final

from ingot.identity.people import compared

EXPIRED_ROWS_MAX: Final = 100  # Forgotten at a time: more than one comes, so they do not pile up.
SESSIONS_MAX: Final = 100  # Of one person in a list.


def lower(email: str | None) -> str | None:
    """An email as it is compared."""
    return None if email is None else compared(email)
