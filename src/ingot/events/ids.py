"""Event IDs as clients see them.

The ID of an event in the log is its position. Positions count the events of all tenants, so clients get them encrypted.
"""

from __future__ import annotations

from typing import Final

from ingot.kernel.cursor_cipher import CursorCipher
from ingot.kernel.pages import InvalidCursor

BEGINNING: Final = "0" * 16  # The position before the first event, which reveals nothing and needs no encryption.


class EventIds:
    """Encrypts and decrypts event IDs. An event has the same ID for all callers of its tenant, and for no other."""

    def __init__(self, cursors: CursorCipher) -> None:
        self._cursors = cursors

    def seal(self, tenant: str, event_id: str) -> str:
        """Return the ID that clients get for an ID of the log."""
        return self._cursors.seal(bytes.fromhex(event_id), bound_to=("event", tenant))

    def open(self, tenant: str, text: str) -> str:
        """Return the ID in the log for an event ID or `BEGINNING`.

        Raises `InvalidCursor` for every text that is not an event ID of this tenant.
        """
        if text == BEGINNING:
            return text
        try:
            return self._cursors.open(text, bound_to=("event", tenant)).hex()
        except InvalidCursor:
            raise InvalidCursor(
                f"{text[:64]!r} is not the ID of an event in this tenant",
                hint="Use the ID of an event that you have read, or omit it to start with the next event.",
            ) from None
