"""What follows when jobs have ended: others that waited for them go on, and batches are complete."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Final

from ingot.engines.postgres.connection import Database
from ingot.engines.postgres.memory import NIL, Memory
from ingot.engines.postgres.tend import FOLD_DELTAS_MAX
from ingot.jobs.lanes import Lane
from ingot.jobs.model import JobStatus
from ingot.kernel.errors import IngotError
from ingot.kernel.logs import for_all, report

RELEASE_JOBS_MAX: Final = 1000
LOOK_PARENTS_MAX: Final = 500

Batches = set[tuple[str, str]]


class Follow:
    """Does it beside the calls that ended the jobs, which do not wait for it; what is lost, the watch finds again."""

    def __init__(self, db: Database, memory: Memory) -> None:
        self._db, self._memory = db, memory
        self._tasks: set[asyncio.Task[None]] = set()
        self._looked_to = NIL
        memory.on_end.append(self.begin)

    def begin(self, parents: Iterable[str], batches: Iterable[tuple[str, str]]) -> None:
        """These jobs have ended, or jobs that wait for them have come; jobs of these batches have ended."""
        task = asyncio.create_task(self._run(list(parents), set(batches)), context=for_all())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle_down(self) -> None:
        """Wait until what was begun is done."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def look(self) -> None:
        """Find jobs that ended and are still waited for, some at a time, round and round."""
        if not self._memory.waits:
            return
        rows = await self._db.call("SELECT * FROM ingot.ended_parents($1, $2)", self._looked_to, LOOK_PARENTS_MAX)
        self._looked_to = rows[-1]["parent"] if len(rows) == LOOK_PARENTS_MAX else NIL
        if ended := [row["parent"] for row in rows if row["has_ended"]]:
            await self._run(ended, set())

    async def fold(self) -> None:
        """Fold the numbers of batches, and tell of those that were complete and not told of."""
        rows = await self._db.call("SELECT * FROM ingot.fold_batches($1)", FOLD_DELTAS_MAX)
        if rows:
            await self._run([], {(row["tenant"], row["batch"]) for row in rows})

    async def _run(self, parents: list[str], batches: Batches) -> None:
        try:
            while parents:
                some, parents = parents[:LOOK_PARENTS_MAX], parents[LOOK_PARENTS_MAX:]
                parents += await self._release(some, batches)
            if batches:
                tenants, names = zip(*sorted(batches), strict=True)
                await self._db.call("SELECT ingot.close_batches($1, $2)", list(tenants), list(names))
        except IngotError as error:
            report("follow_failed", error)

    async def _release(self, parents: list[str], batches: Batches) -> list[str]:
        """Move a bounded number of those that waited; answers for whom to do it next."""
        rows = await self._db.call("SELECT * FROM ingot.release($1, $2)", parents, RELEASE_JOBS_MAX)
        lanes: dict[Lane, list[tuple[int, int, str]]] = {}
        canceled: list[str] = []
        for row in rows:
            if row["status"] == JobStatus.CANCELED:
                canceled.append(row["id"])
                if row["batch"] is not None:
                    batches.add((row["tenant"], row["batch"]))
            elif row["status"] == JobStatus.QUEUED and row["ready"]:
                lane = Lane(row["type"], row["tenant"], row["limit_key"])
                lanes.setdefault(lane, []).append((row["priority"], row["run_at"], NIL))
            elif row["status"] == JobStatus.QUEUED:
                self._memory.due_at(row["run_at"])
        for type, jobs in Counter(row["type"] for row in rows if row["status"] == JobStatus.CANCELED).items():
            self._memory.tell_canceled(type, jobs)
        for lane, positions in lanes.items():
            self._memory.add(lane, len(positions), first=min(positions))
        return [*parents, *canceled] if len(rows) == RELEASE_JOBS_MAX else canceled
