"""Worker rows, which both engines read."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from ingot.jobs.model import NULL
from ingot.jobs.ports import AttemptHeartbeat
from ingot.jobs.worker_model import LeaseStatus, RegisteredWorker, WorkerEventData, WorkerStatus
from ingot.kernel.clock import to_datetime


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table `workers`, and whether the worker's credential is disabled. Times are in microseconds."""

    id: str
    tenant: str | None
    types: tuple[str, ...]
    hostname: str | None
    version: str | None
    protocol: int | None = None
    metadata: str | None
    registered_at: int
    registered_by: str | None
    seen_at: int
    online: bool
    draining: bool
    disabled: bool

    def status(self, silent_since: int | None = None) -> WorkerStatus:
        """Return the status of the worker, which is silent if it was last seen at or before `silent_since`."""
        silent = silent_since is not None and self.seen_at <= silent_since
        return _status_of(online=self.online, silent=silent, draining=self.draining, disabled=self.disabled)

    def worker(self, silent_since: int | None = None) -> RegisteredWorker:
        """Return the worker. `silent_since` is that of `status`."""
        return RegisteredWorker(
            id=self.id,
            tenant=self.tenant,
            status=self.status(silent_since),
            types=self.types,
            registered_at=to_datetime(self.registered_at),
            seen_at=to_datetime(self.seen_at),
            hostname=self.hostname,
            version=self.version,
            protocol=self.protocol,
            metadata=NULL if self.metadata is None else msgspec.Raw(self.metadata.encode()),
            registered_by=self.registered_by,
        )

    def event_data(self, status: WorkerStatus) -> WorkerEventData:
        """Return the data of an event about this worker."""
        return WorkerEventData(
            id=self.id, status=status, types=self.types, hostname=self.hostname, version=self.version
        )


def _status_of(*, online: bool, silent: bool, draining: bool, disabled: bool) -> WorkerStatus:
    """Return the status of a worker. A disabled credential takes precedence, then being offline, then silent."""
    if disabled:
        return WorkerStatus.DISABLED
    if not online:
        return WorkerStatus.OFFLINE
    if silent:
        return WorkerStatus.SILENT
    return WorkerStatus.DRAINING if draining else WorkerStatus.ONLINE


class WorkerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The number of workers that agree in everything that their status depends on."""

    online: bool
    silent: bool
    draining: bool
    disabled: bool
    workers: int


def count_by_status(groups: Iterable[WorkerGroup]) -> dict[WorkerStatus, int]:
    """Return the number of workers by status."""
    counts = dict.fromkeys(WorkerStatus, 0)
    for group in groups:
        status = _status_of(online=group.online, silent=group.silent, draining=group.draining, disabled=group.disabled)
        counts[status] += group.workers
    return counts


def lease_status(
    lease: AttemptHeartbeat | LeaseStatus, expires_at: datetime | None = None, *, cancel: bool = False
) -> LeaseStatus:
    """Return the status of a lease that a worker listed. Without `expires_at`, the worker has lost the lease."""
    return LeaseStatus(job_id=lease.job_id, fence=lease.fence, lease_expires_at=expires_at, cancel_requested=cancel)
