"""Logs of attempts: what is read of one, and how those who follow it are told that there is more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

LOG_TAIL_CHARS_MAX: Final = 64 * 1024  # Of each attempt, its last.

LogChunk = tuple[int, str]  # Where it begins, and its text.


def drop_stored_prefix(text: str, offset: int | None, *, end: int) -> LogChunk:
    """What of a text is new to a log that ends there, and where it begins."""
    start = end if offset is None else offset
    return max(start, end), text[max(0, end - start) :]


def join_chunks(chunks: Sequence[LogChunk], *, after: int) -> LogChunk:
    """The text of a log from a place on, up to the next gap, and where it begins.

    The chunks are in order and go to the end of the log. Of an empty rest, the place is the end of the log.
    """
    end = chunks[-1][0] + len(chunks[-1][1]) if chunks else 0
    least = max(after, end - LOG_TAIL_CHARS_MAX)
    begin, whole = end, ""
    for start, text in chunks:
        if whole and start > begin + len(whole):
            break
        if part := text[max(0, least - start) :]:
            begin = begin if whole else max(start, least)
            whole += part
    return begin, whole


class JobFollowers:
    """Those who follow something of a job in this process, by job."""

    def __init__(self) -> None:
        self._events: dict[str, set[asyncio.Event]] = {}

    @contextmanager
    def follow(self, job_id: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever there is news of a job."""
        news = asyncio.Event()
        self._events.setdefault(job_id, set()).add(news)
        try:
            yield news
        finally:
            of_job = self._events[job_id]
            of_job.discard(news)
            if not of_job:
                del self._events[job_id]

    def wake(self, job_id: str) -> None:
        """There is news of a job."""
        for news in self._events.get(job_id, ()):
            news.set()

    def wake_all(self) -> None:
        """There is something for everybody to see."""
        for job_id in self._events:
            self.wake(job_id)
