"""One job that is being worked on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

from ingot.wire.workers import HeldJob
from ingot.worker.app import Handler
from ingot.worker.job import News, WorkerJob
from ingot.worker.ports import Work

Why = Literal["canceled", "lost", "timeout", "drain"]


class Run:
    """An attempt: the job in the hands of its handler, and why it is to stop, if it is."""

    def __init__(self, handler: Handler, work: Work, job: WorkerJob) -> None:
        self.handler = handler
        self.job = job
        self.id = work.job.id
        self.fence = work.job.fence
        self.timeout_seconds = handler.timeout_seconds or work.timeout_seconds
        self.why: Why | None = None
        self.thread: asyncio.Future[Any] | None = None  # What its thread does, where it runs in one.
        self.ended = False  # The handler is done with it; the server may not know yet.
        self.on_stop: Callable[[], None] | None = None  # Ends what does not look whether it is to stop.
        self.interrupted = False

    def stop(self, why: Why) -> None:
        """Tell the handler to stop, from any thread. The first reason counts, but for a lease that was lost."""
        if self.why is None or why == "lost":
            self.why = why
        self.job.stop()
        if self.on_stop is not None:
            self.on_stop()

    def held(self, news: News) -> HeldJob:
        """The run as it stands in a heartbeat."""
        return HeldJob(
            id=self.id,
            fence=self.fence,
            progress=news.progress,
            log=news.log or None,
            log_offset=news.offset if news.log else None,
        )
