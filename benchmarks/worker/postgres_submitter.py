"""What the queues of the benchmark on PostgreSQL offer, in the words of this one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from benchmarks.postgres.adapter import Queue
from benchmarks.postgres.adapter import System as OnPostgres
from benchmarks.queue.adapter import payload
from benchmarks.worker.adapter import SystemAddress


class PostgresSubmitter:
    """One who asks for work through such a queue."""

    def __init__(self, queue: Queue, unsettled: str, looking: Any) -> None:
        self._queue, self._unsettled, self._looking = queue, unsettled, looking

    async def put(self, number: int) -> None:
        await self._queue.put(payload(number))

    async def put_many(self, numbers: Sequence[int]) -> None:
        await self._queue.put_many([payload(number) for number in numbers])

    async def unsettled(self) -> bool:
        return bool(await self._looking.fetchval(self._unsettled))


@asynccontextmanager
async def through(queue: Queue, system: OnPostgres, place: SystemAddress) -> AsyncIterator[PostgresSubmitter]:
    looking = await asyncpg.connect(place.url)
    await looking.execute("ANALYZE")
    try:
        yield PostgresSubmitter(queue, system.unsettled, looking)
    finally:
        await looking.close()
