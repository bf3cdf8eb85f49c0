"""Ingot on SQLite, through its public front: one store in a folder, the default tenant, a type that does nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import apsw

import ingot
from benchmarks.queue.adapter import (
    BATCH_JOBS,
    CALLERS,
    ConnectionReadback,
    DriveOptions,
    Level,
    Payload,
    TaskSystem,
    ways,
)

TYPE: Final = "noop"
WORKER: Final = "worker-1"


class IngotQueue:
    """An open store."""

    def __init__(self, store: ingot.Ingot) -> None:
        self._jobs, self._tenant = store.jobs, store.default_tenant.id

    async def put(self, job: Payload) -> None:
        await self._jobs.enqueue(self._tenant, TYPE, job)

    async def put_many(self, jobs: list[Payload]) -> None:
        await self._jobs.enqueue_many([ingot.new_job(self._tenant, TYPE, job) for job in jobs])

    async def take(self, limit: int) -> int:
        claims = await self._jobs.claim(WORKER, [TYPE], limit=limit)
        answers = await self._jobs.settle_many(
            [ingot.Settle(job_id=claim.job.id, fence=claim.fence, outcome=ingot.Done()) for claim in claims]
        )
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return len(answers)

    async def readback(self) -> ConnectionReadback:
        # The front offers no pragmas, so the writer's own connection is asked between two of its commits.
        engine: Any = self._jobs._store
        connection: apsw.Connection = engine.connection
        while True:
            try:
                synchronous, mode = connection.pragma("synchronous"), connection.pragma("journal_mode")
            except apsw.ThreadingViolationError:
                await asyncio.sleep(0.01)
            else:
                return ConnectionReadback(int(str(synchronous)), str(mode), apsw.sqlite_lib_version())


@asynccontextmanager
async def open_ours(folder: Path, level: Level, way: DriveOptions) -> AsyncIterator[IngotQueue]:
    async with ingot.open(folder) as store:
        yield IngotQueue(store)


# The store shortens the thread switch interval itself, so only one interval is tried.
SYSTEM = TaskSystem(
    name="ingot",
    levels=("FULL",),
    ways={
        "single": ways([CALLERS])[1:],
        "pipeline": tuple(way for way in ways([8, 2, 1], batch_jobs=BATCH_JOBS) if way.suits_busy),
    },
    open=open_ours,
)
