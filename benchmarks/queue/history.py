"""Creates a store that already has finished jobs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import ingot
from benchmarks.queue.ingot_system import TYPE
from benchmarks.queue.prefill import prefill


def make_history(folder: Path, finished_jobs: int) -> None:
    """Create a store in `folder` with this number of finished jobs of the measured type."""
    tenant = asyncio.run(_make_store(folder))
    prefill(folder, finished=finished_jobs, queued=0, tenant=tenant, type=TYPE)
    os.sync()  # Otherwise pending writes would slow the next runs.
    counted_jobs = asyncio.run(_count_finished(folder))
    if counted_jobs != finished_jobs:
        raise AssertionError(f"the store has {counted_jobs:,} finished jobs instead of {finished_jobs:,}")


async def _make_store(folder: Path) -> str:
    async with ingot.open(folder) as store:
        return store.default_tenant.id


async def _count_finished(folder: Path) -> int:
    async with ingot.open(folder) as store:
        summary = await store.jobs.summary(store.default_tenant.id)
        return summary.counts[ingot.JobStatus.SUCCEEDED]
