"""Requests and answers about workers."""

from __future__ import annotations

from datetime import datetime

import msgspec
from msgspec import Raw

from ingot.jobs.model import Progress
from ingot.jobs.worker_model import LeaseStatus
from ingot.kernel.pages import PAGE_ROWS_DEFAULT
from ingot.wire.jobs import ABSENT, Fence, LogOffset, LogText, PageLimit, RequestStruct


class RegisterWorkerRequest(RequestStruct, frozen=True, kw_only=True):
    """A worker is there. Without an `id` it is the one of the credential. `metadata` is kept as it was sent."""

    types: list[str]
    id: str | None = None
    hostname: str | None = None
    version: str | None = None
    metadata: Raw = msgspec.field(default_factory=lambda: ABSENT)


class RegisterWorkerResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Under which name a worker is known, and how often it is to be heard of at least."""

    id: str
    heartbeat_seconds: float


class JobHeartbeat(RequestStruct, frozen=True, kw_only=True):
    """A job that the worker is at work on, and what it has written since the last time."""

    id: str
    fence: Fence
    progress: Progress | None = None
    log: LogText | None = None
    log_offset: LogOffset | None = None


class WorkerHeartbeatRequest(RequestStruct, frozen=True, kw_only=True):
    """A worker is at work on these jobs, and on no others."""

    jobs: tuple[JobHeartbeat, ...] = ()
    wait_seconds: float = 0


class JobLeaseStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be said of one of them. One that is `lost` is the worker's no more."""

    id: str
    lease_expires_at: datetime | None
    cancel_requested: bool
    lost: bool

    @classmethod
    def of(cls, held: LeaseStatus) -> JobLeaseStatus:
        """The answer for a job that stands like this."""
        return cls(
            id=held.job_id,
            lease_expires_at=held.lease_expires_at,
            cancel_requested=held.cancel_requested,
            lost=held.lost,
        )


class WorkerHeartbeatResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An answer for each, in the order in which they were sent, and whether to take no more work."""

    jobs: list[JobLeaseStatus]
    drain: bool


class WorkerQuery(RequestStruct, frozen=True, kw_only=True):
    """Which worker: one of the tenant, or with `shared`, which needs an operator, one that serves all tenants."""

    shared: bool = False


class WorkerListQuery(WorkerQuery, frozen=True, kw_only=True):
    """Which workers to list."""

    cursor: str | None = None
    limit: PageLimit = PAGE_ROWS_DEFAULT
