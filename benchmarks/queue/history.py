"""A store that has a history: the hook between the campaign and the prefill."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import ingot
from benchmarks.queue.ingot_system import TYPE
from benchmarks.queue.prefill import prefill


def make_history(folder: Path, finished_jobs: int) -> None:
    """Leave a store in `folder` that holds this many finished jobs of the type that is measured."""
    tenant = asyncio.run(_make_store(folder))
    prefill(folder, finished=finished_jobs, queued=0, tenant=tenant, type=TYPE)
    os.sync()  # What is still on its way to the disk would slow the runs that follow.
    found = asyncio.run(_count(folder))
    if found != finished_jobs:
        raise AssertionError(f"the store says that {found:,} jobs are finished, not {finished_jobs:,}")


async def _make_store(folder: Path) -> str:
    async with ingot.open(folder) as store:
        return store.default_tenant.id


async def _count(folder: Path) -> int:
    async with ingot.open(folder) as store:
        summary = await store.jobs.summary(store.default_tenant.id)
        return summary.counts[ingot.JobStatus.SUCCEEDED]
