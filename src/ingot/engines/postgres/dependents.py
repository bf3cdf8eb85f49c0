"""Dependents: release jobs whose parents have ended, and complete batches."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from ingot.engines.postgres.connection import Database
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.lane_cache import NIL_ID, LaneCache
from ingot.engines.postgres.maintenance import FOLD_DELTAS_MAX
from ingot.jobs.lanes import Lane
from ingot.jobs.model import JobStatus
from ingot.kernel.errors import IngotError
from ingot.kernel.logs import detached_context, report

RELEASE_JOBS_MAX: Final = 1000
PARENTS_PER_CALL_MAX: Final = 500

BatchKeys = set[tuple[str, str]]


class UnblockedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is no longer blocked: it was queued or canceled."""

    id: str
    tenant: str
    type: str
    limit_key: str
    batch: str | None
    status: JobStatus
    priority: int
    run_at: int
    ready: bool

    @classmethod
    def from_json(cls, text: str) -> UnblockedJob:
        """Decode a job from its JSON text."""
        return msgspec.json.decode(text, type=cls)


def record_unblocked(lane_cache: LaneCache, jobs: Iterable[UnblockedJob]) -> None:
    """Record that jobs were queued or canceled, and release the dependents of the canceled ones."""
    if canceled := _update_lane_cache(lane_cache, list(jobs)):
        lane_cache.notify_jobs_ended(
            [job.id for job in canceled], {(job.tenant, job.batch) for job in canceled if job.batch is not None}
        )


def _update_lane_cache(lane_cache: LaneCache, jobs: Sequence[UnblockedJob]) -> list[UnblockedJob]:
    """Record in the lane cache that jobs were queued or canceled, and return the canceled ones."""
    lanes: dict[Lane, list[tuple[int, int, str]]] = {}
    canceled = [job for job in jobs if job.status == JobStatus.CANCELED]
    for job in jobs:
        if job.status == JobStatus.QUEUED and job.ready:
            lane = Lane(job.type, job.tenant, job.limit_key)
            lanes.setdefault(lane, []).append((job.priority, job.run_at, NIL_ID))
        elif job.status == JobStatus.QUEUED:
            lane_cache.record_due_time(job.run_at)
    for type, count in Counter(job.type for job in canceled).items():
        lane_cache.notify_jobs_canceled(type, count)
    for lane, positions in lanes.items():
        lane_cache.announce_ready(lane, len(positions), first=min(positions))
    return canceled


class DependentReleaser:
    """Releases dependents in the background, so that the calls that end jobs do not wait for it.

    A poll finds the releases that failed or that a crashed process did not complete.
    """

    def __init__(self, db: Database, lane_cache: LaneCache) -> None:
        self._db, self._lane_cache = db, lane_cache
        self._tasks: set[asyncio.Task[None]] = set()
        self._scanned_to = NIL_ID
        lane_cache.jobs_ended_callbacks.append(self.start)

    def start(self, parents: Iterable[str], batches: Iterable[tuple[str, str]]) -> None:
        """Start to release the dependents of these parents, and to complete these batches.

        The parents are jobs that ended or got new dependents. The batches have jobs that ended.
        """
        task = asyncio.create_task(self._run(list(parents), set(batches)), context=detached_context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def is_idle(self) -> bool:
        """Whether all releases that were started are complete."""
        return not self._tasks

    async def wait_until_idle(self) -> None:
        """Wait until all releases that were started are complete."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def release_missed(self) -> None:
        """Release the remaining dependents of ended jobs.

        Each call checks a bounded number of parents, and the next one continues with the following parents.
        """
        if not self._lane_cache.has_dependencies:
            return
        rows = await self._db.call(CALL.ended_parents, self._scanned_to, PARENTS_PER_CALL_MAX, read_only=True)
        self._scanned_to = rows[-1]["parent"] if len(rows) == PARENTS_PER_CALL_MAX else NIL_ID
        if ended := [row["parent"] for row in rows if row["has_ended"]]:
            await self._run(ended, set())

    async def fold_batches(self) -> None:
        """Fold the counters of batches, and complete batches whose completion was missed."""
        rows = await self._db.call(CALL.fold_batches, FOLD_DELTAS_MAX)
        if rows:
            await self._run([], {(row["tenant"], row["batch"]) for row in rows})

    async def _run(self, parents: list[str], batches: BatchKeys) -> None:
        try:
            while parents:
                chunk, parents = parents[:PARENTS_PER_CALL_MAX], parents[PARENTS_PER_CALL_MAX:]
                parents += await self._release(chunk, batches)
            if batches:
                tenants, names = zip(*sorted(batches), strict=True)
                await self._db.call(CALL.close_batches, list(tenants), list(names))
        except IngotError as error:
            report("follow_failed", error)

    async def _release(self, parents: list[str], batches: BatchKeys) -> list[str]:
        """Release a bounded number of dependents. Return the parents to continue with.

        Adds the batches of canceled dependents to `batches`.
        """
        rows = await self._db.call(CALL.release_dependents, parents, RELEASE_JOBS_MAX)
        canceled = _update_lane_cache(
            self._lane_cache, [UnblockedJob(**row) for row in rows if row["status"] != JobStatus.BLOCKED]
        )
        batches |= {(job.tenant, job.batch) for job in canceled if job.batch is not None}
        canceled_ids = [job.id for job in canceled]
        return [*parents, *canceled_ids] if len(rows) == RELEASE_JOBS_MAX else canceled_ids
