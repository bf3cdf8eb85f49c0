"""arq on Redis: a short poll interval, because it polls for work, and no results."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from benchmarks.postgres.adapter import version_of
from benchmarks.queue.adapter import component, payload
from benchmarks.worker.adapter import TYPE, System, SystemAddress
from benchmarks.worker.start_times import record_start

library: Any = component("arq")
connections: Any = component("arq.connections")
workers: Any = component("arq.worker")
uvloop: Any = component("uvloop")
JOBS_AT_ONCE: Final = 100
POLL_SECONDS: Final = 0.01
QUEUE: Final = "arq:queue"


async def noop(_: dict[str, Any], number: int, pad: str) -> None:
    record_start(number)


class ArqSubmitter:
    """A pool of connections. arq has no call for many jobs."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def put(self, number: int) -> None:
        await self._pool.enqueue_job(TYPE, **payload(number))

    async def put_many(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            await self.put(number)

    async def unsettled(self) -> bool:
        return bool(await self._pool.zcard(QUEUE))


@asynccontextmanager
async def submitting(address: SystemAddress) -> AsyncIterator[ArqSubmitter]:
    pool = await library.create_pool(connections.RedisSettings.from_dsn(address.url))
    yield ArqSubmitter(pool)
    await pool.aclose()


def work(address: SystemAddress) -> None:
    uvloop.install()
    workers.Worker(
        [workers.func(noop, name=TYPE, keep_result=0)],
        redis_settings=connections.RedisSettings.from_dsn(address.url),
        max_jobs=JOBS_AT_ONCE,
        poll_delay=POLL_SECONDS,
    ).run()


SYSTEM = System(
    name="arq",
    version=version_of("arq"),
    jobs=6_000,
    how=f"max_jobs {JOBS_AT_ONCE}, poll_delay {POLL_SECONDS * 1000:g} ms, no results, uvloop; 4 callers, one by one",
    callers=4,
    batch_jobs=1,
    submitting=submitting,
    work=work,
)
