"""Pages of the history. A position is the time at which a job finished, and its ID."""

from __future__ import annotations

from ingot.jobs.model import HistoryEntry
from ingot.kernel.clock import to_micros
from ingot.kernel.ids import is_id
from ingot.kernel.pages import InvalidCursor

INSTANT_DIGITS_MAX = 18


def page_of(entries: list[HistoryEntry], limit: int) -> tuple[list[HistoryEntry], str | None]:
    """Return up to `limit` entries, and the position to continue from if there are more."""
    if len(entries) <= limit:
        return entries, None
    last = entries[limit - 1]
    return entries[:limit], f"{to_micros(last.finished_at)} {last.id}"


def parse_position(text: str) -> tuple[int, str]:
    """Return the microseconds and the job ID of a position. Raises `InvalidCursor`."""
    instant, _, job_id = text.partition(" ")
    if not (instant.isascii() and instant.isdecimal() and len(instant) <= INSTANT_DIGITS_MAX and is_id(job_id)):
        raise InvalidCursor
    return int(instant), job_id
