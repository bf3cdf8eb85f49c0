"""rq on Redis: SimpleWorker, which does not fork for each job, and no results."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from benchmarks.postgres.adapter import version_of
from benchmarks.queue.adapter import component, payload
from benchmarks.worker.adapter import TYPE, System, SystemAddress
from benchmarks.worker.start_times import record_start

library: Any = component("rq")
registry: Any = component("rq.registry")
redis: Any = component("redis")
BATCH_JOBS: Final = 100


def noop(number: int, pad: str) -> None:
    record_start(number)


class RqSubmitter:
    """One queue on one connection."""

    def __init__(self, address: SystemAddress) -> None:
        self._queue = library.Queue(TYPE, connection=redis.Redis.from_url(address.url))
        self._running = registry.StartedJobRegistry(queue=self._queue)

    async def put(self, number: int) -> None:
        self._queue.enqueue(noop, kwargs=payload(number), result_ttl=0)

    async def put_many(self, numbers: Sequence[int]) -> None:
        prepared = [self._queue.prepare_data(noop, kwargs=payload(number), result_ttl=0) for number in numbers]
        self._queue.enqueue_many(prepared)

    async def unsettled(self) -> bool:
        return bool(self._queue.count or self._running.get_job_count(cleanup=False))


@asynccontextmanager
async def submitting(address: SystemAddress) -> AsyncIterator[RqSubmitter]:
    yield RqSubmitter(address)


def work(address: SystemAddress) -> None:
    connection = redis.Redis.from_url(address.url)
    library.SimpleWorker([library.Queue(TYPE, connection=connection)], connection=connection).work(
        logging_level="CRITICAL"
    )


SYSTEM = System(
    name="rq",
    version=version_of("rq"),
    jobs=1_500,
    how=f"SimpleWorker, no results; enqueue_many of {BATCH_JOBS}, 1 caller",
    callers=1,
    batch_jobs=BATCH_JOBS,
    submitting=submitting,
    work=work,
)
