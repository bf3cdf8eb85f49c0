"""What follows when jobs have ended: others that waited for them go on, and batches are complete."""

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
    """A job that is blocked no more."""

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
        """One from its text."""
        return msgspec.json.decode(text, type=cls)


def record_unblocked(memory: LaneCache, moved: Iterable[UnblockedJob]) -> None:
    """Note that jobs are queued or canceled, and what follows from that."""
    if canceled := _record_unblocked(memory, list(moved)):
        memory.notify_jobs_ended(
            [job.id for job in canceled], {(job.tenant, job.batch) for job in canceled if job.batch is not None}
        )


def _record_unblocked(memory: LaneCache, moved: Sequence[UnblockedJob]) -> list[UnblockedJob]:
    """Note what became of jobs; answers those that are canceled."""
    lanes: dict[Lane, list[tuple[int, int, str]]] = {}
    canceled = [job for job in moved if job.status == JobStatus.CANCELED]
    for job in moved:
        if job.status == JobStatus.QUEUED and job.ready:
            lane = Lane(job.type, job.tenant, job.limit_key)
            lanes.setdefault(lane, []).append((job.priority, job.run_at, NIL_ID))
        elif job.status == JobStatus.QUEUED:
            memory.record_due_time(job.run_at)
    for type, jobs in Counter(job.type for job in canceled).items():
        memory.notify_jobs_canceled(type, jobs)
    for lane, positions in lanes.items():
        memory.announce_ready(lane, len(positions), first=min(positions))
    return canceled


class DependentReleaser:
    """Does it beside the calls that ended the jobs, which do not wait for it; what is lost, the watch finds again."""

    def __init__(self, db: Database, memory: LaneCache) -> None:
        self._db, self._lane_cache = db, memory
        self._tasks: set[asyncio.Task[None]] = set()
        self._scanned_to = NIL_ID
        memory.jobs_ended_callbacks.append(self.start)

    def start(self, parents: Iterable[str], batches: Iterable[tuple[str, str]]) -> None:
        """These jobs have ended, or jobs that wait for them have come; jobs of these batches have ended."""
        task = asyncio.create_task(self._run(list(parents), set(batches)), context=detached_context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait_until_idle(self) -> None:
        """Wait until what was begun is done."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def release_missed(self) -> None:
        """Find jobs that ended and are still waited for, some at a time, round and round."""
        if not self._lane_cache.has_dependencies:
            return
        rows = await self._db.call(CALL.ended_parents, self._scanned_to, PARENTS_PER_CALL_MAX)
        self._scanned_to = rows[-1]["parent"] if len(rows) == PARENTS_PER_CALL_MAX else NIL_ID
        if ended := [row["parent"] for row in rows if row["has_ended"]]:
            await self._run(ended, set())

    async def fold_batches(self) -> None:
        """Fold the numbers of batches, and tell of those that were complete and not told of."""
        rows = await self._db.call(CALL.fold_batches, FOLD_DELTAS_MAX)
        if rows:
            await self._run([], {(row["tenant"], row["batch"]) for row in rows})

    async def _run(self, parents: list[str], batches: BatchKeys) -> None:
        try:
            while parents:
                some, parents = parents[:PARENTS_PER_CALL_MAX], parents[PARENTS_PER_CALL_MAX:]
                parents += await self._release(some, batches)
            if batches:
                tenants, names = zip(*sorted(batches), strict=True)
                await self._db.call(CALL.close_batches, list(tenants), list(names))
        except IngotError as error:
            report("follow_failed", error)

    async def _release(self, parents: list[str], batches: BatchKeys) -> list[str]:
        """Move a bounded number of those that waited; answers for whom to do it next."""
        rows = await self._db.call(CALL.release, parents, RELEASE_JOBS_MAX)
        canceled = _record_unblocked(
            self._lane_cache, [UnblockedJob(**row) for row in rows if row["status"] != JobStatus.BLOCKED]
        )
        batches |= {(job.tenant, job.batch) for job in canceled if job.batch is not None}
        ended = [job.id for job in canceled]
        return [*parents, *ended] if len(rows) == RELEASE_JOBS_MAX else ended
