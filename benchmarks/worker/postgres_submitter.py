"""An adapter from the queues of the PostgreSQL benchmark to the interface of this one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from benchmarks.postgres.adapter import Queue
from benchmarks.postgres.adapter import System as PostgresSystem
from benchmarks.queue.adapter import payload
from benchmarks.worker.adapter import SystemAddress


class PostgresSubmitter:
    """Submits jobs to a queue of the PostgreSQL benchmark. `unsettled` is a query for jobs that have not ended."""

    def __init__(self, queue: Queue, unsettled: str, connection: Any) -> None:
        self._queue, self._unsettled, self._connection = queue, unsettled, connection

    async def put(self, number: int) -> None:
        await self._queue.put(payload(number))

    async def put_many(self, numbers: Sequence[int]) -> None:
        await self._queue.put_many([payload(number) for number in numbers])

    async def unsettled(self) -> bool:
        return bool(await self._connection.fetchval(self._unsettled))


@asynccontextmanager
async def submit_through(
    queue: Queue, system: PostgresSystem, address: SystemAddress
) -> AsyncIterator[PostgresSubmitter]:
    """Yield a submitter for a queue, with a connection of its own for queries."""
    connection = await asyncpg.connect(address.url)
    await connection.execute("ANALYZE")
    try:
        yield PostgresSubmitter(queue, system.unsettled, connection)
    finally:
        await connection.close()
