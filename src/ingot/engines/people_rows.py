"""Limits and functions for people that both engines use."""

from __future__ import annotations

from typing import Final

from ingot.identity.people import normalize_email

EXPIRED_ROWS_MAX: Final = 100  # Each new row deletes up to this many expired rows, so they cannot accumulate.
SESSIONS_MAX: Final = 100  # Maximum number of listed sessions of a person.


def normalize_email_or_none(email: str | None) -> str | None:
    """Return the email in the form in which emails are compared."""
    return None if email is None else normalize_email(email)
