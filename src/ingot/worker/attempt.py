"""One job that is being worked on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

from ingot.wire.workers import JobHeartbeat
from ingot.worker.app import Handler
from ingot.worker.job import AttemptUpdate, WorkerJob
from ingot.worker.ports import ClaimedJob

StopReason = Literal["canceled", "lost", "timeout", "drain"]


class RunningAttempt:
    """An attempt: the job in the hands of its handler, and why it is to stop, if it is."""

    def __init__(self, handler: Handler, work: ClaimedJob, job: WorkerJob) -> None:
        self.handler = handler
        self.job = job
        self.id = work.job.id
        self.fence = work.job.fence
        self.timeout_seconds = handler.timeout_seconds or work.timeout_seconds
        self.stop_reason: StopReason | None = None
        self.thread_future: asyncio.Future[Any] | None = None  # What its thread does, where it runs in one.
        self.is_finished = False  # The handler is done with it; the server may not know yet.
        self.stop_callback: Callable[[], None] | None = None  # Ends what does not look whether it is to stop.
        self.is_interrupted = False

    def stop(self, why: StopReason) -> None:
        """Tell the handler to stop, from any thread. The first reason counts, but for a lease that was lost."""
        if self.stop_reason is None or why == "lost":
            self.stop_reason = why
        self.job.stop()
        if self.stop_callback is not None:
            self.stop_callback()

    def job_heartbeat(self, news: AttemptUpdate) -> JobHeartbeat:
        """The run as it stands in a heartbeat."""
        return JobHeartbeat(
            id=self.id,
            fence=self.fence,
            progress=news.progress,
            log=news.log or None,
            log_offset=news.offset if news.log else None,
        )
