"""What both engines know of people."""

from __future__ import annotations

from typing import Final

from ingot.identity.people import normalize_email

EXPIRED_ROWS_MAX: Final = 100  # Forgotten at a time: more than one comes, so they do not pile up.
SESSIONS_MAX: Final = 100  # Of one person in a list.


def normalize_email_or_none(email: str | None) -> str | None:
    """An email as it is compared."""
    return None if email is None else normalize_email(email)
