"""Ids of events: the number of a batch and a place in it, as text that sorts as the numbers do."""

from __future__ import annotations

from typing import Final

from ingot.kernel.pages import InvalidCursor

BATCH_EVENTS_MAX: Final = 2**16


def format_event_id(batch: int, place: int) -> str:
    """The id of the event at this place of a batch."""
    return f"{batch * BATCH_EVENTS_MAX + place:016x}"


def parse_event_id(text: str) -> tuple[int, int]:
    """The batch and the place that an id stands for. Raises `InvalidCursor`."""
    try:
        number = int(text, 16)
    except ValueError:
        raise InvalidCursor(f"{text[:64]!r} is not the id of an event") from None
    if len(text) != 16 or number < 0:
        raise InvalidCursor(f"{text[:64]!r} is not the id of an event")
    return divmod(number, BATCH_EVENTS_MAX)
