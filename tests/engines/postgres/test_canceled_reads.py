"""A read whose caller goes away half way: its transaction is rolled back, and nothing is said about it."""

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


class Leaving(Connection):
    """A connection whose caller goes away when one of these words is on its way to the server."""

    words: ClassVar[list[str]] = []

    def leave_at(self, text: str) -> None:
        if any(word in text for word in self.words):
            self.words.clear()
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    async def execute(self, query: str, *args: Any, **options: Any) -> str:
        self.leave_at(query)
        return await super().execute(query, *args, **options)

    async def fetch(self, query: str, *args: Any, **options: Any) -> Any:
        self.leave_at(query)
        return await super().fetch(query, *args, **options)


@pytest.mark.parametrize("word", ["BEGIN", "job_rows", "COMMIT"])
async def test_a_read_that_is_canceled_half_way_is_rolled_back(tmp_path: Path, word: str) -> None:
    database = await database_for(tmp_path)
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: said.append(told))
    store = await PostgresStore.open(
        database.server_url, clock=SystemClock(), lease_seconds=60, connections=1, connection_class=Leaving
    )
    try:
        tenant = (await Tenants(store).ensure_default()).id
        jobs = Jobs(store, lease_seconds=60)
        made = await jobs.enqueue(tenant, "noop")
        Leaving.words.append(word)
        reading = asyncio.create_task(jobs.get(tenant, made.job.id))
        await asyncio.wait([reading])
        assert reading.cancelled()
        assert Leaving.words == []
        assert (await jobs.get(tenant, made.job.id)).id == made.job.id
    finally:
        await store.close()
    assert said == []
