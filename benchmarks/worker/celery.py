"""celery on Redis: the solo pool, which is its fastest for short jobs, and no results."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from benchmarks.postgres.adapter import version_of
from benchmarks.queue.adapter import component, payload
from benchmarks.worker.adapter import TYPE, System, SystemAddress
from benchmarks.worker.start_times import record_start

library: Any = component("celery")
redis: Any = component("redis")
PREFETCH_JOBS: Final = 100
QUEUE: Final = "celery"
UNACKED: Final = "unacked"


def application(address: SystemAddress) -> Any:
    """Return the application. On a durable Redis, jobs are acknowledged after they ran, to survive a worker crash."""
    app = library.Celery("bench", broker=address.url)
    app.conf.update(
        task_ignore_result=True,
        task_acks_late=address.store == "redis-durable",
        worker_prefetch_multiplier=PREFETCH_JOBS,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
    )

    @app.task(name=TYPE)  # type: ignore[untyped-decorator]
    def noop(number: int, pad: str) -> None:
        record_start(number)

    return app


class CelerySubmitter:
    """One connection to the broker. celery has no call for many jobs."""

    def __init__(self, address: SystemAddress) -> None:
        self._app = application(address)
        self._task = self._app.tasks[TYPE]
        self._redis = redis.Redis.from_url(address.url)
        self._producer = self._app.amqp.producer_pool.acquire()

    async def put(self, number: int) -> None:
        self._task.apply_async(kwargs=payload(number), producer=self._producer)

    async def put_many(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            await self.put(number)

    async def unsettled(self) -> bool:
        return bool(self._redis.llen(QUEUE) or self._redis.hlen(UNACKED))


@asynccontextmanager
async def submitting(address: SystemAddress) -> AsyncIterator[CelerySubmitter]:
    yield CelerySubmitter(address)


def work(address: SystemAddress) -> None:
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=CRITICAL"]
    application(address).worker_main(["worker", "--pool=solo", *quiet])


SYSTEM = System(
    name="celery",
    version=version_of("celery"),
    jobs=4_000,
    how=f"pool solo, prefetch {PREFETCH_JOBS}, no results; acks late when durable; 1 caller, one by one",
    callers=1,
    batch_jobs=1,
    submitting=submitting,
    work=work,
)
