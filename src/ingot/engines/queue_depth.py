"""Queue depths and summaries, computed from counters."""

from __future__ import annotations

from ingot.jobs.metrics import Depth
from ingot.jobs.model import JobStatus, Summary
from ingot.kernel.clock import MICROS


def depth_of(tenant: str | None, counts: dict[JobStatus, int], oldest: int | None, now: int) -> Depth:
    """Return the queue depth of a tenant with all statuses. `oldest` is when the oldest ready job became due."""
    age = None if oldest is None else max(0.0, (now - oldest) / MICROS)
    all_counts = {status: counts.get(status, 0) for status in JobStatus}
    return Depth(tenant=tenant, counts=all_counts, oldest_ready_seconds=age)


def summary_of(counts: dict[JobStatus, int], oldest: int | None, now: int) -> Summary:
    """Return the summary of a tenant's jobs, of one type or of all types. `oldest` is as in `depth_of`."""
    depth = depth_of(None, counts, oldest, now)
    running = depth.counts[JobStatus.RUNNING]
    return Summary(counts=depth.counts, running=running, oldest_queued_seconds=depth.oldest_ready_seconds)
