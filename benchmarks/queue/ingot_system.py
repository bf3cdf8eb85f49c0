"""Ingot on SQLite, through its public API: one store, the default tenant, and a type that does nothing."""

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
    drive_options,
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
        results = await self._jobs.settle_many(
            [ingot.Settle(job_id=claim.job.id, fence=claim.fence, outcome=ingot.Done()) for claim in claims]
        )
        for result in results:
            if isinstance(result, Exception):
                raise result
        return len(results)

    async def readback(self) -> ConnectionReadback:
        # The API has no access to pragmas, so read them from the writer's connection between two of its commits.
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
async def open_ours(folder: Path, level: Level, options: DriveOptions) -> AsyncIterator[IngotQueue]:
    async with ingot.open(folder) as store:
        yield IngotQueue(store)


# The store shortens the thread switch interval itself, so only one interval is tried.
SYSTEM = TaskSystem(
    name="ingot",
    levels=("FULL",),
    options={
        "single": drive_options([CALLERS])[1:],
        "pipeline": tuple(options for options in drive_options([8, 2, 1], batch_jobs=BATCH_JOBS) if options.suits_busy),
    },
    open=open_ours,
)
