"""The interface between a worker and the source of its jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

import msgspec

from ingot.jobs.model import Job
from ingot.wire.jobs import AttemptFailed, AttemptReleased, AttemptSnoozed, AttemptSucceeded, SettleResult
from ingot.wire.workers import JobHeartbeat, WorkerHeartbeatResponse

ReportedOutcome = AttemptSucceeded | AttemptFailed | AttemptSnoozed | AttemptReleased


class ClaimedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that the worker has claimed, and the timeout of its type."""

    job: Job
    timeout_seconds: float


class JobSource(Protocol):
    """A server over HTTP, or a database. Every call is safe to repeat if its response was lost."""

    def register(self, types: Sequence[str]) -> Awaitable[float]:
        """Register the worker with the job types it handles. Return the maximum heartbeat interval in seconds."""

    def claim(self, type: str, *, limit: int, wait_seconds: float) -> Awaitable[list[ClaimedJob]]:
        """Claim up to `limit` jobs of a type. If none is ready, wait for one up to `wait_seconds`."""

    def heartbeat(
        self, heartbeats: Sequence[JobHeartbeat], *, wait_seconds: float
    ) -> Awaitable[WorkerHeartbeatResponse]:
        """Renew the leases of all jobs that the worker runs. Jobs that are not listed may be released.

        Returns after `wait_seconds`, or earlier if a job has to stop or the worker has to drain.
        """

    def settle(self, outcomes: Sequence[ReportedOutcome]) -> Awaitable[list[SettleResult]]:
        """Record the outcomes of attempts. Return one result for each, in the same order."""

    def drain(self) -> Awaitable[None]:
        """Stop claiming: waiting claims return at once without jobs."""

    def leave(self) -> Awaitable[None]:
        """Unregister the worker. Jobs that it still holds are released."""

    def close(self) -> Awaitable[None]:
        """Close connections."""
