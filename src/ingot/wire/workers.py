"""Requests and responses of workers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from ingot.jobs.checks import PROTOCOL_MAX
from ingot.jobs.model import Progress
from ingot.jobs.worker_model import LeaseStatus
from ingot.kernel.pages import PAGE_ROWS_DEFAULT
from ingot.wire.jobs import ABSENT, Fence, LogOffset, LogText, PageLimit, RequestStruct
from ingot.wire.protocol import PROTOCOL

ProtocolVersion = Annotated[int, Meta(ge=1, le=PROTOCOL_MAX)]


class RegisterWorkerRequest(RequestStruct, frozen=True, kw_only=True):
    """A worker that registers."""

    types: list[str]
    """Job types that the worker runs."""
    id: str | None = None
    """ID of the worker. For a worker credential: its ID, optionally with `/` and an instance name."""
    hostname: str | None = None
    """Name of the machine on which the worker runs."""
    version: str | None = None
    """Version of the worker."""
    protocol: ProtocolVersion = 1
    """Version of the worker protocol that the worker uses. `/healthz` returns the versions that the server supports."""
    metadata: Raw = msgspec.field(default_factory=lambda: ABSENT)
    """Any JSON. It is stored unchanged."""


class RegisterWorkerResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The registered worker."""

    id: str
    """ID of the worker."""
    heartbeat_seconds: float
    """Longest time between two heartbeats, in seconds."""
    protocol: int = PROTOCOL
    """Newest version of the worker protocol that the server supports."""


class JobHeartbeat(RequestStruct, frozen=True, kw_only=True):
    """A running job of the worker, with new progress and log text."""

    id: str
    """ID of the job."""
    fence: Fence
    """Fence of the attempt."""
    progress: Progress | None = None
    """Progress of the attempt."""
    log: LogText | None = None
    """Text that the attempt logged since the previous heartbeat."""
    log_offset: LogOffset | None = None
    """Number of characters logged before `log`. With it, repeating a heartbeat does not repeat the text."""


class WorkerHeartbeatRequest(RequestStruct, frozen=True, kw_only=True):
    """A heartbeat of a worker. Jobs that it claimed more than 15 seconds ago and does not list are released."""

    jobs: tuple[JobHeartbeat, ...] = ()
    """All jobs that the worker is running."""
    wait_seconds: float = 0
    """Maximum number of seconds to wait for a change, such as a cancel request, up to 60."""


class JobLeaseStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The lease of a job of the worker."""

    id: str
    """ID of the job."""
    lease_expires_at: datetime | None
    """When the lease expires unless it is renewed."""
    cancel_requested: bool
    """Whether the handler should stop. The worker then settles the attempt."""
    lost: bool
    """Whether the worker has lost the job. Its outcome would be rejected."""

    @classmethod
    def of(cls, status: LeaseStatus) -> JobLeaseStatus:
        """Convert the status of a lease to the form in which it is sent."""
        return cls(
            id=status.job_id,
            lease_expires_at=status.lease_expires_at,
            cancel_requested=status.cancel_requested,
            lost=status.lost,
        )


class WorkerHeartbeatResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The leases of the worker's jobs."""

    jobs: list[JobLeaseStatus]
    """One entry per job, in the order of the request."""
    drain: bool
    """Whether the worker must stop claiming jobs."""


class WorkerQuery(RequestStruct, frozen=True, kw_only=True):
    """The kind of worker: one of the tenant, or a shared one."""

    shared: bool = False
    """Whether to use the shared workers, which serve all tenants. Operators only."""


class WorkerListQuery(WorkerQuery, frozen=True, kw_only=True):
    """The workers to list."""

    cursor: str | None = None
    """The `next_cursor` of the previous response, to continue the list."""
    limit: PageLimit = PAGE_ROWS_DEFAULT
    """Maximum number of workers."""
