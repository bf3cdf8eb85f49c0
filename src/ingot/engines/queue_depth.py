"""Figures as engines read them."""

from __future__ import annotations

from ingot.jobs.metrics import Depth
from ingot.jobs.model import JobStatus, Summary
from ingot.kernel.clock import MICROS


def depth_of(tenant: str | None, counted: dict[JobStatus, int], oldest: int | None, now: int) -> Depth:
    """The jobs of a tenant, every status among them, and the age of the work that became due first."""
    age = None if oldest is None else max(0.0, (now - oldest) / MICROS)
    counts = {status: counted.get(status, 0) for status in JobStatus}
    return Depth(tenant=tenant, counts=counts, oldest_ready_seconds=age)


def summary_of(counted: dict[JobStatus, int], oldest: int | None, now: int) -> Summary:
    """The same of one tenant, perhaps of one type."""
    depth = depth_of(None, counted, oldest, now)
    running = depth.counts[JobStatus.RUNNING]
    return Summary(counts=depth.counts, running=running, oldest_queued_seconds=depth.oldest_ready_seconds)
