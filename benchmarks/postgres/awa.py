"""awa, a Rust engine with a Python API: `AsyncClient` with its queue storage, and handlers that are coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.postgres.adapter import CALLERS, TYPE, DriveOptions, OnStart, System, version_of
from benchmarks.queue.adapter import Payload, component

library: Any = component("awa")

# Reading its view of all jobs takes seconds. These are the receipts of completed jobs and the counts of pruned ones.
UNSETTLED: Final = """
SELECT (SELECT coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches)
    + (SELECT count(*) FROM awa.done_entries)
    + (SELECT coalesce(sum(pruned_completed_count), 0) FROM awa.queue_lanes) < {jobs}
"""


@dataclass
class Noop:
    """The arguments of a job. awa uses the name of the class as the kind of the job."""

    number: int
    pad: str


class AwaQueue:
    """An open client."""

    def __init__(self, client: Any, options: DriveOptions) -> None:
        self._client, self._options = client, options

    async def put(self, job: Payload) -> None:
        await self._client.insert(Noop(**job), queue=TYPE)

    async def put_many(self, jobs: list[Payload]) -> None:
        await self._client.enqueue_many_copy([Noop(**job) for job in jobs], queue=TYPE)

    @asynccontextmanager
    async def working(self, on_start: OnStart) -> AsyncIterator[None]:
        @self._client.task(Noop, queue=TYPE)  # type: ignore[untyped-decorator]
        async def work(job: Any) -> None:
            on_start(0)

        queue: dict[str, Any] = {"name": TYPE, "max_workers": self._options.workers}
        if self._options.claim_jobs > 1:
            queue |= {"claimers": 2, "claim_batch_size": self._options.claim_jobs}
        await self._client.start([queue], poll_interval_ms=50)
        try:
            yield
        finally:
            await self._client.shutdown()


def install(url: str) -> None:
    asyncio.run(_install(url))


def _with_host(url: str) -> str:
    """Add a host to the URL, because awa's parser requires one. The socket folder overrides it."""
    return url.replace("@/", "@localhost/")


async def _install(url: str) -> None:
    client = library.AsyncClient(_with_host(url))
    await client.migrate()
    await client.install_queue_storage()
    await client.close()


@asynccontextmanager
async def open_awa(url: str, options: DriveOptions) -> AsyncIterator[AwaQueue]:
    client = library.AsyncClient(_with_host(url), max_connections=options.connections)
    try:
        yield AwaQueue(client, options)
    finally:
        await client.close()


def _jobs_at_once(workers: int, claim_jobs: int = 1) -> DriveOptions:
    claiming = f", 2 claimers of {claim_jobs}" if claim_jobs > 1 else ""
    return DriveOptions(
        workers=workers, claim_jobs=claim_jobs, connections=20, label=f"max_workers {workers}{claiming}"
    )


SYSTEM = System(
    name="awa",
    version=version_of("awa-pg"),
    run_jobs=20_000,
    unsettled=UNSETTLED,
    install=install,
    open=open_awa,
    options={
        "single": tuple(
            DriveOptions(callers=CALLERS, connections=connections, label=f"32 callers, {connections} connections")
            for connections in (32, 10)
        ),
        "bulk": tuple(
            DriveOptions(callers=callers, batch_jobs=jobs, label=f"{callers} callers, batches of {jobs}, by COPY")
            for callers, jobs in ((4, 1000), (2, 2000))
        ),
        "run": (_jobs_at_once(64), _jobs_at_once(256), _jobs_at_once(256, 500)),
        "latency": (_jobs_at_once(10),),
        "held": (_jobs_at_once(256),),
    },
)
