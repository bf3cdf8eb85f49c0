"""Idle cost: a store with waiting claims and no other activity runs fewer than one query a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from ingot.identity import Tenants
from ingot.jobs.maintenance import JobMaintenance
from ingot.kernel.clock import SystemClock
from tests.conformance.counting_store import WatchedStore
from tests.factories import open_store

IDLE_SECONDS = 3.0
WAITING_CLAIMS = 10


class QueryCounter:
    """Counts the statements of every connection opened in the test."""

    def __init__(self) -> None:
        self.count = 0

    def attach(self, connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, self._on_statement)

    def _on_statement(self, _: object) -> None:
        self.count += 1


@pytest.fixture
def queries() -> Iterator[QueryCounter]:
    counter = QueryCounter()
    apsw.connection_hooks.append(counter.attach)
    try:
        yield counter
    finally:
        apsw.connection_hooks.remove(counter.attach)


async def test_waiting_claims_cost_less_than_one_query_a_second(queries: QueryCounter, tmp_path: Path) -> None:
    opened = await open_store("sqlite", tmp_path / "data", SystemClock())
    store, maintenance = WatchedStore(opened), JobMaintenance(opened)
    jobs, tenant = store.jobs(), (await Tenants(opened).ensure_default()).id
    maintenance.start()
    # Maintenance has something to wait for: a scheduled job and a lease.
    await jobs.enqueue(tenant, "later", delay=3600)
    await jobs.enqueue(tenant, "held")
    await jobs.claim("worker", ["held"])
    waiting = [asyncio.create_task(jobs.claim(f"w{n}", ["noop"], wait_seconds=60)) for n in range(WAITING_CLAIMS)]
    await store.found_nothing(WAITING_CLAIMS)
    before, started_at = queries.count, time.monotonic()
    await asyncio.sleep(IDLE_SECONDS)
    idle, seconds = queries.count - before, time.monotonic() - started_at
    job = await jobs.enqueue(tenant, "noop")
    done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=30)
    for task in pending:
        task.cancel()
    await asyncio.wait(waiting)
    await maintenance.stop()
    await opened.close()
    assert before > WAITING_CLAIMS
    assert idle < seconds
    assert [[claim.job.id for claim in task.result()] for task in done] == [[job.job.id]]
