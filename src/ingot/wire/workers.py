"""Requests and answers about workers."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import Raw

from ingot.jobs.crew import Held
from ingot.jobs.model import Progress
from ingot.kernel.pages import PAGE_ROWS_DEFAULT
from ingot.wire.jobs import ABSENT, Fence, Limit, LogOffset, LogText, Request


class WorkerRegistration(Request, frozen=True, kw_only=True):
    """A worker is there. Without an `id` it is the one of the credential. `metadata` is kept as it was sent."""

    types: list[str]
    id: str | None = None
    hostname: str | None = None
    version: str | None = None
    metadata: Raw = msgspec.field(default_factory=lambda: ABSENT)


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """Under which name a worker is known, and how often it is to be heard of at least."""

    id: str
    heartbeat_seconds: float


class HeldJob(Request, frozen=True, kw_only=True):
    """A job that the worker is at work on, and what it has written since the last time."""

    id: str
    fence: Fence
    progress: Progress | None = None
    log: LogText | None = None
    log_offset: LogOffset | None = None


class WorkerBeat(Request, frozen=True, kw_only=True):
    """A worker is at work on these jobs, and on no others."""

    jobs: tuple[HeldJob, ...] = ()
    wait_seconds: float = 0


class HeldAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be said of one of them. One that is `lost` is the worker's no more."""

    id: str
    lease_expires_at: datetime | None
    cancel_requested: bool
    lost: bool

    @classmethod
    def of(cls, held: Held) -> HeldAnswer:
        """The answer for a job that stands like this."""
        return cls(
            id=held.job_id,
            lease_expires_at=held.lease_expires_at,
            cancel_requested=held.cancel_requested,
            lost=held.lost,
        )


class WorkerBeatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer for each, in the order in which they were sent, and whether to take no more work."""

    jobs: list[HeldAnswer]
    drain: bool


class WorkerQuery(Request, frozen=True, kw_only=True):
    """Which worker: one of the tenant, or with `shared`, which needs an operator, one that serves all tenants."""

    shared: bool = False


class WorkerListQuery(WorkerQuery, frozen=True, kw_only=True):
    """Which workers to list."""

    cursor: str | None = None
    limit: Limit = PAGE_ROWS_DEFAULT
