"""chancy on psycopg: its asyncio executor, which has the lowest cost per job, with eager polling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.postgres.adapter import CALLERS, TYPE, DriveOptions, OnStart, System, version_of
from benchmarks.queue.adapter import Payload, component

library: Any = component("chancy")

_on_start: OnStart | None = None  # A global, because chancy imports the function of a job by name.


@library.job(queue=TYPE)  # type: ignore[untyped-decorator]
async def work(number: int, pad: str) -> None:
    if _on_start is not None:
        _on_start(number)


class ChancyQueue:
    """An open application with one queue."""

    def __init__(self, app: Any, options: DriveOptions) -> None:
        self._app, self._options = app, options

    async def put(self, job: Payload) -> None:
        await self._app.push(work.job.with_kwargs(**job))

    async def put_many(self, jobs: list[Payload]) -> None:
        async for _ in self._app.push_many([work.job.with_kwargs(**job) for job in jobs], batch_size=len(jobs)):
            pass

    @asynccontextmanager
    async def working(self, on_start: OnStart) -> AsyncIterator[None]:
        global _on_start  # noqa: PLW0603 - see above
        _on_start = on_start
        queue = library.Queue(
            TYPE,
            concurrency=self._options.workers,
            executor=library.Chancy.Executor.Async,
            polling_interval=1,
            eager_polling=self._options.variant == "eager",
        )
        await self._app.declare(queue, upsert=True)
        async with library.Worker(self._app, register_signal_handlers=False) as worker:
            yield
            await worker.stop()


def install(url: str) -> None:
    asyncio.run(_install(url))


async def _install(url: str) -> None:
    async with library.Chancy(url) as app:
        await app.migrate()


@asynccontextmanager
async def open_chancy(url: str, options: DriveOptions) -> AsyncIterator[ChancyQueue]:
    async with library.Chancy(url, max_connection_pool_size=options.connections) as app:
        yield ChancyQueue(app, options)


def _jobs_at_once(workers: int, variant: str = "eager") -> DriveOptions:
    polling = "eager polling" if variant else "polling each second"
    return DriveOptions(workers=workers, variant=variant, label=f"concurrency {workers}, {polling}")


SYSTEM = System(
    name="chancy",
    version=version_of("chancy"),
    run_jobs=6_000,
    unsettled="SELECT EXISTS (SELECT FROM chancy_jobs WHERE state IN ('pending', 'running', 'retrying'))",
    install=install,
    open=open_chancy,
    options={
        "single": tuple(
            DriveOptions(callers=CALLERS, connections=connections, label=f"32 callers, {connections} connections")
            for connections in (32, 10)
        ),
        "bulk": tuple(
            DriveOptions(callers=callers, batch_jobs=jobs, label=f"{callers} callers, batches of {jobs}")
            for callers, jobs in ((4, 100), (4, 500))
        ),
        "run": (_jobs_at_once(100), _jobs_at_once(1000), _jobs_at_once(3000, "")),
        "latency": (_jobs_at_once(10),),
        "held": (_jobs_at_once(1000),),
    },
)
