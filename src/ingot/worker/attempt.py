"""The state of an attempt that is running in this worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Literal

from ingot.wire.workers import JobHeartbeat
from ingot.worker.app import Handler
from ingot.worker.job import AttemptUpdate, WorkerJob
from ingot.worker.ports import ClaimedJob

StopReason = Literal["canceled", "lost", "timeout", "drain"]


class RunningAttempt:
    """A claimed job, its handler, and the reason why it has to stop, if any."""

    def __init__(self, handler: Handler, claimed: ClaimedJob, job: WorkerJob) -> None:
        self.handler = handler
        self.job = job
        self.id = claimed.job.id
        self.fence = claimed.job.fence
        self.timeout_seconds = handler.timeout_seconds or claimed.timeout_seconds
        self.stop_reason: StopReason | None = None
        self.thread_future: asyncio.Future[Any] | None = None  # The call in the handler thread, if there is one.
        self.is_finished = False  # The handler has ended; the outcome may not be settled yet.
        self.stop_callback: Callable[[], None] | None = None  # Stops the process of an isolated handler.
        self.is_interrupted = False
        self.stack: str | None = None  # Of the exception that the handler raised.
        self._started_at = time.monotonic()
        self._ended_at: float | None = None

    @property
    def duration_seconds(self) -> float:
        """How long the handler has run."""
        return (self._ended_at or time.monotonic()) - self._started_at

    def end(self) -> None:
        """Record that the handler has ended, so that its task is not canceled any more."""
        self._ended_at = time.monotonic()
        self.is_interrupted = True
        if self.job.output_lines is not None:
            self.job.output_lines.flush()

    def stop(self, reason: StopReason) -> None:
        """Ask the handler to stop. Thread-safe. The first reason is kept, except that `lost` replaces any other."""
        if self.stop_reason is None or reason == "lost":
            self.stop_reason = reason
        self.job.stop()
        if self.stop_callback is not None:
            self.stop_callback()

    def job_heartbeat(self, update: AttemptUpdate) -> JobHeartbeat:
        """Return the entry of this attempt for a heartbeat, with the given update."""
        return JobHeartbeat(
            id=self.id,
            fence=self.fence,
            progress=update.progress,
            log=update.log or None,
            log_offset=update.offset if update.log else None,
        )
