"""Errors of events.

IngotError ─── Gap
InvalidInput ─── EventTooLarge
"""

from __future__ import annotations

from ingot.kernel.errors import IngotError, InvalidInput


class Gap(IngotError):
    """The next events were removed before they were read."""

    code = "gap"
    status = 410
    hint = "Omit `after` to read from the oldest stored event. Some events before it are missing."

    def __init__(self, after: str) -> None:
        super().__init__(
            f"events up to {after} were removed, because their retention has passed",
            hint=f"Continue with after={after} to read the stored events. Some events before them are missing.",
        )
        self.after = after


class EventTooLarge(InvalidInput):
    """The data is too large for an event."""

    code = "event_too_large"
    status = 413
    hint = "Store the data elsewhere, for example as a blob, and put its ID in the event. Nothing was changed."
