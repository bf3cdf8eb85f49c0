"""The loop that removes finished jobs whose retention has passed."""

from __future__ import annotations

import asyncio

from ingot.jobs.model import JobCollectionResult
from ingot.jobs.ports import CollectJobs, JobStore
from ingot.kernel.loops import Loop

EVERY_SECONDS = 60.0
BATCH_JOBS = 1000
PAUSE_SECONDS = 0.05  # Lets other commands run between two batches.


class JobRetention(Loop):
    """Removes finished jobs in bounded batches with pauses, so that a claim waits for at most one batch."""

    name = "jobs.retention"

    def __init__(self, store: JobStore) -> None:
        super().__init__()
        self._store = store
        self._more = False

    async def run_once(self) -> JobCollectionResult:
        """Remove one batch."""
        collected = await self._store.run(CollectJobs(limit=BATCH_JOBS))
        self._more = collected.more
        return collected

    async def wait(self) -> None:
        """Wait briefly if there are more jobs to remove, and otherwise until the next round."""
        await asyncio.sleep(PAUSE_SECONDS if self._more else EVERY_SECONDS)
