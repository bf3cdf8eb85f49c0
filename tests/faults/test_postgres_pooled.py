"""A store behind a proxy that pools transactions, where every call may use another server connection."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import msgspec
import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from ingot.engines.postgres import PostgresStore, make_worker_role
from ingot.engines.postgres.worker_database import WorkerDatabase
from ingot.events import Events
from ingot.identity import Tenants
from ingot.jobs import Jobs, JobStatus
from ingot.jobs.errors import JobNotFound
from ingot.kernel.clock import MICROS
from ingot.kernel.errors import StoreMisconfigured
from tests.faults.pgbouncer import SERVER_CONNECTIONS, open_bouncer
from tests.faults.postgres_cluster import (
    DRAIN_SECONDS_MAX,
    LEASE_SECONDS,
    CountingRecorder,
    PostgresCluster,
    PostgresWorkload,
    open_cluster,
)
from tests.faults.recorded_calls import SLUGS
from tests.system.programs import run_ingot
from tests.waiting import eventually

pytestmark = [pytest.mark.postgres, pytest.mark.pgbouncer, pytest.mark.usefixtures("leftovers")]

APP = """
from ingot import Worker

worker = Worker()

@worker.handler("noop")
def noop(job):
    return None
"""
READERS = 4
READS_OF_EACH = 100
ENDS = {"succeeded", "dead", "canceled"}
VERBS = {"enqueue", "claim", "heartbeat", "settle", "cancel", "retry", "change"}


class Pooled:
    """A server, and the URL of its pool."""

    def __init__(self, cluster: PostgresCluster, url: str) -> None:
        self.cluster = cluster
        self.url = url


@pytest.fixture(scope="module")
async def pooled() -> AsyncIterator[Pooled]:
    """A server of its own behind a pool."""
    async with open_cluster() as cluster, open_bouncer(cluster.server.folder) as url:
        yield Pooled(cluster, url)


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[EventDict]]:
    """Capture the many log entries, because rendering them would take most of the time."""
    with capture_logs() as captured:
        yield captured


async def test_a_client_of_the_pool_uses_several_server_connections(pooled: Pooled) -> None:
    async def backends(connection: asyncpg.Connection[asyncpg.Record]) -> set[int]:
        return {await connection.fetchval("SELECT pg_backend_pid()") for _ in range(200)}

    clients = [await asyncpg.connect(pooled.url, statement_cache_size=0) for _ in range(4)]
    try:
        backends_by_client = await asyncio.gather(*map(backends, clients))
    finally:
        for client in clients:
            await client.close()
    assert 1 < max(map(len, backends_by_client)) <= SERVER_CONNECTIONS


class Reader:
    """Reads as one tenant and the other in turn, and records the jobs that each could see."""

    def __init__(self, store: PostgresStore, tenants: list[str]) -> None:
        self.jobs = Jobs(store, lease_seconds=LEASE_SECONDS)
        self.events = Events(store)
        self.tenants = tenants
        self.visible_jobs: dict[str, set[str]] = {tenant: set() for tenant in tenants}
        self.reads = 0

    async def read(self, times: int) -> None:
        """Read many times, with every kind of read."""
        for number in range(times):
            tenant, other = self.tenants[:: 1 if number % 2 else -1]
            match number % 8 // 2:
                case 0:
                    page = await self.jobs.list(tenant, limit=5)
                    self.visible_jobs[tenant].update(job.id for job in page.items)
                    assert {job.tenant for job in page.items} <= {tenant}
                case 1:
                    events = await self.events.read(tenant, limit=5)
                    job_ids = [msgspec.json.decode(event.data)["id"] for event in events]
                    self.visible_jobs[tenant].update(job_ids)
                case 2 if self.visible_jobs[other]:
                    job_id = next(iter(self.visible_jobs[other]))
                    assert (await self.jobs.get(other, job_id)).id == job_id
                    with pytest.raises(JobNotFound):
                        await self.jobs.get(tenant, job_id)
                    with pytest.raises(JobNotFound):
                        await self.jobs.attempts(tenant, job_id)
                    self.reads += 2
                case _:
                    await self.jobs.summary(tenant)
            self.reads += 1


@pytest.mark.long
async def test_all_invariants_hold_behind_the_pool(pooled: Pooled) -> None:
    recorder = CountingRecorder()
    stop = asyncio.Event()
    seed = random.randrange(2**32)
    async with pooled.cluster.store(pooled.url, pooled=True) as store:
        workload = PostgresWorkload(store, recorder, seed=seed)
        await workload.prepare()
        reader = Reader(store, [(await Tenants(store).get(slug)).id for slug in SLUGS])
        async with asyncio.TaskGroup() as group:
            group.create_task(workload.work_until(stop, times=2))
            await asyncio.gather(*[reader.read(READS_OF_EACH) for _ in range(READERS)])
            await eventually(lambda: _has_every_end(reader))
            stop.set()
        last = PostgresWorkload(store, recorder, seed=seed)
        await last.prepare()
        assert await last.drain(DRAIN_SECONDS_MAX), "J9 the work did not finish"
    history = recorder.history()
    tables = await pooled.cluster.check(history, wait_until_idle=False)
    print(f"{recorder.acked} acknowledged calls, {reader.reads} reads, {len(tables.jobs)} jobs, seed {seed}")
    assert {job.status for job in tables.jobs.values()} == ENDS
    assert {call.verb for call in history.calls.values() if call.acked} == VERBS
    for tenant, visible_jobs in reader.visible_jobs.items():
        assert {tables.jobs[job_id].tenant for job_id in visible_jobs} == {tenant}


async def _has_every_end(reader: Reader) -> bool:
    counts = [(await reader.jobs.summary(tenant)).counts for tenant in reader.tenants]
    return all(any(count[JobStatus(end)] for count in counts) for end in ENDS)


async def test_a_store_that_is_not_configured_for_the_pool_does_not_open(pooled: Pooled) -> None:
    with pytest.raises(StoreMisconfigured) as caught:
        async with pooled.cluster.store(pooled.url, pooled=False):
            pass
    assert "INGOT_DATABASE_POOLED" in caught.value.hint


async def test_a_worker_that_is_not_configured_for_the_pool_is_refused(pooled: Pooled, tmp_path: Path) -> None:
    async with pooled.cluster.store() as store:
        tenant = (await Tenants(store).ensure_default()).id
    await make_worker_role(pooled.cluster.owner_url, "press", tenant)
    async with open_bouncer(pooled.cluster.server.folder, user="press") as url:
        with pytest.raises(StoreMisconfigured) as caught:
            await WorkerDatabase.open(url, instance="1", lease=MICROS, connections=1)
        assert "INGOT_DATABASE_POOLED" in caught.value.hint
        worker = await WorkerDatabase.open(url, instance="1", lease=MICROS, connections=1, pooled=True)
        await worker.register(["noop"])
        await worker.close()
        (tmp_path / "app.py").write_text(APP, encoding="utf-8")
        environment = {**os.environ, "INGOT_DATABASE_URL": url}
        process = await asyncio.to_thread(run_ingot, "worker", cwd=tmp_path, env=environment)
        assert process.code == 1
        assert "INGOT_DATABASE_POOLED=true" in process.stderr


async def test_a_store_behind_a_pool_of_sessions_needs_no_setting(pooled: Pooled) -> None:
    async with (
        open_bouncer(pooled.cluster.server.folder, mode="session") as url,
        pooled.cluster.store(url, pooled=False, connections=1) as store,
    ):
        await Tenants(store).ensure_default()


async def test_a_store_that_is_configured_for_the_pool_works(pooled: Pooled) -> None:
    async with pooled.cluster.store(pooled.url, pooled=True) as store:
        jobs = Jobs(store, lease_seconds=LEASE_SECONDS)
        tenant = (await Tenants(store).ensure_default()).id

        async def use() -> None:
            for _ in range(20):
                job = (await jobs.enqueue(tenant, "aware")).job
                assert await jobs.get(tenant, job.id) == job

        await asyncio.gather(*[use() for _ in range(8)])
