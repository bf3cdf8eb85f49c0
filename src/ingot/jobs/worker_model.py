"""Workers: what is known of one, and what one is told."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from ingot.jobs.model import NULL

WorkerKey = tuple[str | None, str]  # Its tenant, `None` for one that serves all, and its id.


class WorkerStatus(StrEnum):
    """How a worker stands. It is `disabled` when its credential is, whatever it says itself."""

    ONLINE = "online"
    DRAINING = "draining"
    OFFLINE = "offline"
    DISABLED = "disabled"


class RegisteredWorker(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker that has registered. One with no tenant is shared, and serves every tenant in turn.

    `seen_at` is when it was last heard of, give or take a few seconds. `registered_by` is the caller that registered it
    last.
    """

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
    """When the server last heard from the worker, accurate to about 5 seconds."""
    hostname: str | None = None
    """Name of the machine on which the worker runs."""
    version: str | None = None
    """Version of the worker, as it reported."""
    metadata: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)
    """JSON that the worker registered with, unchanged."""
    registered_by: str | None = None
    """Caller that last registered the worker."""


class WorkerEventData(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What an event says about a worker."""

    id: str
    status: WorkerStatus
    types: tuple[str, ...] = ()
    hostname: str | None = None
    version: str | None = None


class LeaseStatus(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a worker is told of a job that it named: when its lease runs out, or that it is `lost`."""

    job_id: str
    fence: int
    lease_expires_at: datetime | None = None
    cancel_requested: bool = False

    @property
    def lost(self) -> bool:
        """Whether the job is somebody else's now, or nobody's."""
        return self.lease_expires_at is None


class HeartbeatAnswer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a worker is told: of each job that it named, in order, and whether it is to take no more."""

    jobs: list[LeaseStatus]
    drain: bool


class WorkerMaintenanceResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a round did: workers that were found silent, workers that were forgotten, and whether there are more."""

    marked_offline: int = 0
    removed: int = 0
    more: bool = False
