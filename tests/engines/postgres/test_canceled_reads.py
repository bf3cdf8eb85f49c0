"""A read whose caller is canceled: its transaction is rolled back, and no error is reported."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ingot.engines.postgres import PostgresStore
from ingot.engines.postgres.connection import Connection
from ingot.identity import Tenants
from ingot.jobs import Jobs
from ingot.kernel.clock import SystemClock
from tests.postgres import database_for


class CancelingConnection(Connection):
    """A connection that cancels its caller when it sends a statement with one of these words."""

    words: ClassVar[list[str]] = []

    def cancel_caller_at(self, text: str) -> None:
        if any(word in text for word in self.words):
            self.words.clear()
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    async def execute(self, query: str, *args: Any, **options: Any) -> str:
        self.cancel_caller_at(query)
        return await super().execute(query, *args, **options)

    async def fetch(self, query: str, *args: Any, **options: Any) -> Any:
        self.cancel_caller_at(query)
        return await super().fetch(query, *args, **options)


@pytest.mark.parametrize("word", ["BEGIN", "job_rows", "COMMIT"])
async def test_a_read_canceled_during_any_statement_is_rolled_back(tmp_path: Path, word: str) -> None:
    database = await database_for(tmp_path)
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    store = await PostgresStore.open(
        database.server_url, clock=SystemClock(), lease_seconds=60, connections=1, connection_class=CancelingConnection
    )
    try:
        tenant = (await Tenants(store).ensure_default()).id
        jobs = Jobs(store, lease_seconds=60)
        enqueued = await jobs.enqueue(tenant, "noop")
        CancelingConnection.words.append(word)
        reading = asyncio.create_task(jobs.get(tenant, enqueued.job.id))
        await asyncio.wait([reading])
        assert reading.cancelled()
        assert CancelingConnection.words == []
        assert (await jobs.get(tenant, enqueued.job.id)).id == enqueued.job.id
    finally:
        await store.close()
    assert reported == []
