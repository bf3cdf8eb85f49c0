"""What can go wrong with events.

IngotError ─── Gap
InvalidInput ─── EventTooLarge
"""

from __future__ import annotations

from ingot.kernel.errors import IngotError, InvalidInput


class Gap(IngotError):
    """Events that come next are not kept any more."""

    code = "gap"
    status = 410
    hint = "Begin without `after`: the oldest events that are kept come first, and some before them are missing."

    def __init__(self, after: str) -> None:
        super().__init__(
            f"events up to {after} are not kept any more",
            hint=f"Go on with after={after}: what is kept follows it, and some events before it are missing.",
        )
        self.after = after


class EventTooLarge(InvalidInput):
    """The data is too large for an event."""

    code = "event_too_large"
    status = 413
    hint = "Store the bytes elsewhere and put their address in the event; nothing was changed."
