"""Registered workers, and the answers that workers get to heartbeats."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from ingot.jobs.model import NULL

WorkerKey = tuple[str | None, str]  # The tenant, or `None` for a shared worker, and the worker ID.

HEARTBEATS_PER_LEASE: Final = 4
MISSED_HEARTBEATS_MAX: Final = 2  # A worker that misses this number of heartbeats is silent.


def heartbeat_seconds(lease_seconds: float) -> float:
    """Return the longest time between two heartbeats of a worker, for leases of this duration."""
    return lease_seconds / HEARTBEATS_PER_LEASE


def silent_seconds(lease_seconds: float) -> float:
    """Return how long after its last heartbeat a worker is silent, for leases of this duration."""
    return heartbeat_seconds(lease_seconds) * MISSED_HEARTBEATS_MAX


class WorkerStatus(StrEnum):
    """The status of a worker. It is `disabled` while its credential is disabled.

    A `silent` worker has missed heartbeats. If it stays silent for the length of a lease, it loses its jobs and is
    `offline`.
    """

    ONLINE = "online"
    DRAINING = "draining"
    SILENT = "silent"
    OFFLINE = "offline"
    DISABLED = "disabled"


class RegisteredWorker(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker that has registered."""

    id: str
    """ID of the worker."""
    tenant: str | None
    """ID of the tenant; `null` for a shared worker, which serves all tenants."""
    status: WorkerStatus
    """Status of the worker."""
    types: tuple[str, ...]
    """Job types that the worker runs."""
    registered_at: datetime
    """When the worker last registered."""
    seen_at: datetime
    """Last sign of life: when the worker last registered or sent a heartbeat, accurate to about 4 seconds."""
    hostname: str | None = None
    """Name of the machine on which the worker runs."""
    version: str | None = None
    """Version of the worker, as it reported."""
    protocol: int | None = None
    """Version of the worker protocol that the worker uses; `null` for a worker that connects to the database."""
    metadata: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)
    """JSON that the worker registered with, unchanged."""
    registered_by: str | None = None
    """Caller that last registered the worker."""


class WorkerEventData(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The data of an event about a worker."""

    id: str
    status: WorkerStatus
    types: tuple[str, ...] = ()
    hostname: str | None = None
    version: str | None = None


class LeaseStatus(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The status of a lease that a worker listed in a heartbeat."""

    job_id: str
    fence: int
    lease_expires_at: datetime | None = None
    """When the lease expires; `None` if the worker has lost the job."""
    cancel_requested: bool = False

    @property
    def lost(self) -> bool:
        """Whether the worker no longer holds the lease."""
        return self.lease_expires_at is None


class HeartbeatAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer to a heartbeat of a worker."""

    jobs: list[LeaseStatus]
    """One entry per listed job, in the same order."""
    drain: bool
    """Whether the worker must stop claiming jobs."""


class WorkerMaintenanceResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of one round of worker maintenance."""

    marked_offline: int = 0
    removed: int = 0
    more: bool = False
    """Whether there are more workers to mark or remove."""
