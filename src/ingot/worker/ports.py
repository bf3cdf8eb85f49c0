"""Where a worker gets its work, and tells how it goes."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

import msgspec

from ingot.jobs.model import Job
from ingot.wire.jobs import AttemptFailed, AttemptReleased, AttemptSnoozed, AttemptSucceeded, SettleResult
from ingot.wire.workers import JobHeartbeat, WorkerHeartbeatResponse

ReportedOutcome = AttemptSucceeded | AttemptFailed | AttemptSnoozed | AttemptReleased


class ClaimedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is the worker's now, and how long it may take."""

    job: Job
    timeout_seconds: float


class JobSource(Protocol):
    """The server, over HTTP, or the database itself. Every call may be made again when its answer was lost."""

    def register(self, types: Sequence[str]) -> Awaitable[float]:
        """The worker is there, and can do this; answers how often it is to be heard of at least, in seconds."""

    def claim(self, type: str, *, limit: int, wait_seconds: float) -> Awaitable[list[ClaimedJob]]:
        """Get up to so many jobs of a type; with none there, wait for some."""

    def heartbeat(self, held: Sequence[JobHeartbeat], *, wait_seconds: float) -> Awaitable[WorkerHeartbeatResponse]:
        """The worker is at work on these jobs and on no others; answered early when there is something to tell."""

    def settle(self, endings: Sequence[ReportedOutcome]) -> Awaitable[list[SettleResult]]:
        """Tell how attempts ended; an answer for each."""

    def drain(self) -> Awaitable[None]:
        """The worker takes no more: claims that wait are answered now, with nothing."""

    def leave(self) -> Awaitable[None]:
        """The worker goes: what it still holds is given back."""

    def close(self) -> Awaitable[None]:
        """Let go of connections."""
