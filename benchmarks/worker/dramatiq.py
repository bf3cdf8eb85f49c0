"""dramatiq on Redis: one worker with its default number of threads, and no results."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from benchmarks.postgres.adapter import version_of
from benchmarks.queue.adapter import component, payload
from benchmarks.worker.adapter import TYPE, System, SystemAddress
from benchmarks.worker.start_times import record_start

THREADS: Final = 8
PREFETCH_JOBS: Final = 100
os.environ.setdefault("dramatiq_queue_prefetch", str(PREFETCH_JOBS))  # Read at the import of the library.
library: Any = component("dramatiq")
brokers: Any = component("dramatiq.brokers.redis")


class DramatiqSubmitter:
    """A broker with one actor. dramatiq has no call for many jobs."""

    def __init__(self, address: SystemAddress) -> None:
        self.broker = brokers.RedisBroker(url=address.url)
        self._actor = library.actor(lambda number, pad: record_start(number), actor_name=TYPE, broker=self.broker)

    async def put(self, number: int) -> None:
        self._actor.send(**payload(number))

    async def put_many(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            await self.put(number)

    async def unsettled(self) -> bool:
        return bool(self.broker.client.hlen("dramatiq:default.msgs"))


@asynccontextmanager
async def submitting(address: SystemAddress) -> AsyncIterator[DramatiqSubmitter]:
    yield DramatiqSubmitter(address)


def work(address: SystemAddress) -> None:
    worker = library.Worker(DramatiqSubmitter(address).broker, worker_threads=THREADS)
    worker.start()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        time.sleep(60)


SYSTEM = System(
    name="dramatiq",
    version=version_of("dramatiq"),
    jobs=8_000,
    how=f"{THREADS} threads, prefetch {PREFETCH_JOBS}, no results; 1 caller, one by one",
    callers=1,
    batch_jobs=1,
    submitting=submitting,
    work=work,
)
