"""Logs of attempts: joining their stored chunks, and notifying the followers of a job."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

LOG_TAIL_CHARS_MAX: Final = 64 * 1024  # The last characters of each attempt, which are kept.

LogChunk = tuple[int, str]  # The position of the first character, and the text.


def drop_stored_prefix(text: str, offset: int | None, *, end: int) -> LogChunk:
    """Return the part of a text that lies behind the end of the log. `offset=None` appends the whole text."""
    start = end if offset is None else offset
    return max(start, end), text[max(0, end - start) :]


def join_chunks(chunks: Sequence[LogChunk], *, after: int) -> LogChunk:
    """Return the text of a log from the position `after` up to the next gap, and the position where the text begins.

    The chunks are in order, and the last one ends where the log ends. If there is no text behind `after`, the returned
    position is the end of the log.
    """
    end = chunks[-1][0] + len(chunks[-1][1]) if chunks else 0
    first = max(after, end - LOG_TAIL_CHARS_MAX)
    joined_start, joined_text = end, ""
    for start, text in chunks:
        if joined_text and start > joined_start + len(joined_text):
            break
        if part := text[max(0, first - start) :]:
            joined_start = joined_start if joined_text else max(start, first)
            joined_text += part
    return joined_start, joined_text


class JobFollowers:
    """The tasks in this process that follow jobs, by job ID."""

    def __init__(self) -> None:
        self._events: dict[str, set[asyncio.Event]] = {}

    @contextmanager
    def follow(self, job_id: str) -> Iterator[asyncio.Event]:
        """Provide an event that is set whenever the followers of this job are woken."""
        event = asyncio.Event()
        self._events.setdefault(job_id, set()).add(event)
        try:
            yield event
        finally:
            job_events = self._events[job_id]
            job_events.discard(event)
            if not job_events:
                del self._events[job_id]

    def wake(self, job_id: str) -> None:
        """Wake all followers of a job."""
        for event in self._events.get(job_id, ()):
            event.set()

    def wake_all(self) -> None:
        """Wake all followers of all jobs."""
        for job_id in self._events:
            self.wake(job_id)
