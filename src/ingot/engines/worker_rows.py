"""Rows of workers, as both engines read them."""

from __future__ import annotations

from datetime import datetime

import msgspec

from ingot.jobs.model import NULL
from ingot.jobs.ports import AttemptHeartbeat
from ingot.jobs.worker_model import LeaseStatus, RegisteredWorker, WorkerEventData, WorkerStatus
from ingot.kernel.clock import to_datetime


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `workers`, and whether the credential it belongs to is disabled."""

    id: str
    tenant: str | None
    types: tuple[str, ...]
    hostname: str | None
    version: str | None
    metadata: str | None
    registered_at: int
    registered_by: str | None
    seen_at: int
    online: bool
    draining: bool
    disabled: bool

    @property
    def status(self) -> WorkerStatus:
        """How it stands: out, or not there, or about to go, or ready."""
        if self.disabled:
            return WorkerStatus.DISABLED
        if not self.online:
            return WorkerStatus.OFFLINE
        return WorkerStatus.DRAINING if self.draining else WorkerStatus.ONLINE

    def worker(self) -> RegisteredWorker:
        """The worker."""
        return RegisteredWorker(
            id=self.id,
            tenant=self.tenant,
            status=self.status,
            types=self.types,
            registered_at=to_datetime(self.registered_at),
            seen_at=to_datetime(self.seen_at),
            hostname=self.hostname,
            version=self.version,
            metadata=NULL if self.metadata is None else msgspec.Raw(self.metadata.encode()),
            registered_by=self.registered_by,
        )

    def event_data(self, status: WorkerStatus) -> WorkerEventData:
        """What an event says about it."""
        return WorkerEventData(
            id=self.id, status=status, types=self.types, hostname=self.hostname, version=self.version
        )


def lease_status(
    lease: AttemptHeartbeat | LeaseStatus, expires_at: datetime | None = None, *, cancel: bool = False
) -> LeaseStatus:
    """What a worker is told of a lease that it named; without an expiry it has lost that."""
    return LeaseStatus(job_id=lease.job_id, fence=lease.fence, lease_expires_at=expires_at, cancel_requested=cancel)
