"""Positions in the history: when a job finished, and its id."""

from __future__ import annotations

from ingot.kernel.ids import is_id
from ingot.kernel.pages import InvalidCursor

INSTANT_DIGITS_MAX = 18


def write_position(finished_at: int, job_id: str) -> str:
    """The position of an entry as text."""
    return f"{finished_at} {job_id}"


def read_position(text: str) -> tuple[int, str]:
    """The position that a text stands for. Raises `InvalidCursor` when it stands for none."""
    instant, _, job_id = text.partition(" ")
    if not (instant.isascii() and instant.isdecimal() and len(instant) <= INSTANT_DIGITS_MAX and is_id(job_id)):
        raise InvalidCursor
    return int(instant), job_id
