"""procrastinate on psycopg: `run_worker_async`, which listens for notifications, with several jobs at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.postgres.adapter import CALLERS, TYPE, DriveOptions, OnStart, System, version_of
from benchmarks.queue.adapter import Payload, component

library: Any = component("procrastinate")


class ProcrastinateQueue:
    """An open app with one task."""

    def __init__(self, app: Any, options: DriveOptions) -> None:
        self._app, self._options = app, options
        self._on_start: OnStart | None = None
        self._task = app.task(self._work, name=TYPE)

    async def _work(self, number: int, pad: str) -> None:
        if self._on_start is not None:
            self._on_start(number)

    async def put(self, job: Payload) -> None:
        await self._task.defer_async(**job)

    async def put_many(self, jobs: list[Payload]) -> None:
        await self._task.batch_defer_async(*jobs)

    @asynccontextmanager
    async def working(self, on_start: OnStart) -> AsyncIterator[None]:
        self._on_start = on_start
        worker = asyncio.create_task(
            self._app.run_worker_async(
                concurrency=self._options.workers,
                install_signal_handlers=False,
                delete_jobs=self._options.variant or None,
            )
        )
        try:
            yield
        finally:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)


def install(url: str) -> None:
    asyncio.run(_install(url))


async def _install(url: str) -> None:
    app = library.App(connector=library.PsycopgConnector(conninfo=url))
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


@asynccontextmanager
async def open_procrastinate(url: str, options: DriveOptions) -> AsyncIterator[ProcrastinateQueue]:
    app = library.App(connector=library.PsycopgConnector(conninfo=url, min_size=1, max_size=options.connections))
    async with app.open_async():
        yield ProcrastinateQueue(app, options)


def _jobs_at_once(workers: int, variant: str = "") -> DriveOptions:
    deleting = ", deletes succeeded jobs" if variant else ""
    return DriveOptions(workers=workers, connections=10, variant=variant, label=f"concurrency {workers}{deleting}")


SYSTEM = System(
    name="procrastinate",
    version=version_of("procrastinate"),
    run_jobs=4_000,
    unsettled="SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))",
    install=install,
    open=open_procrastinate,
    options={
        "single": tuple(
            DriveOptions(callers=CALLERS, connections=connections, label=f"32 callers, {connections} connections")
            for connections in (32, 10)
        ),
        "bulk": tuple(
            DriveOptions(callers=callers, batch_jobs=jobs, label=f"{callers} callers, batches of {jobs}")
            for callers, jobs in ((4, 1000), (2, 1000))
        ),
        "run": (_jobs_at_once(30), _jobs_at_once(100), _jobs_at_once(30, "successful")),
        "latency": (_jobs_at_once(10),),
        "held": (_jobs_at_once(30),),
    },
)
