"""Event IDs: the number of a batch and an index in it, as hexadecimal text that sorts like the numbers."""

from __future__ import annotations

from typing import Final

from ingot.kernel.pages import InvalidCursor

BATCH_EVENTS_MAX: Final = 2**16


def format_event_id(batch: int, index: int) -> str:
    """Return the ID of the event at this index of a batch."""
    return f"{batch * BATCH_EVENTS_MAX + index:016x}"


def parse_event_id(text: str) -> tuple[int, int]:
    """Return the batch and the index in it. Raises `InvalidCursor`."""
    try:
        number = int(text, 16)
    except ValueError:
        raise InvalidCursor(f"{text[:64]!r} is not an event ID") from None
    if len(text) != 16 or number < 0:
        raise InvalidCursor(f"{text[:64]!r} is not an event ID")
    return divmod(number, BATCH_EVENTS_MAX)
