"""Behind a proxy that pools transactions every call may meet another server connection, and nothing goes wrong."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator

import asyncpg
import msgspec
import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from ingot.engines.postgres import PostgresStore
from ingot.events import Events
from ingot.identity import Tenants
from ingot.jobs import Jobs, JobStatus
from ingot.jobs.errors import JobNotFound
from ingot.kernel.errors import StoreMisconfigured
from tests.faults.pgbouncer import SERVER_CONNECTIONS, open_bouncer
from tests.faults.postgres_environment import (
    DRAIN_SECONDS_MAX,
    LEASE_SECONDS,
    CountingRecorder,
    Shift,
    World,
    open_world,
)
from tests.faults.recorded_calls import SLUGS
from tests.waiting import eventually

pytestmark = [pytest.mark.postgres, pytest.mark.pgbouncer, pytest.mark.usefixtures("leftovers")]

READERS = 4
READS_OF_EACH = 100
ENDS = {"succeeded", "dead", "canceled"}
VERBS = {"enqueue", "claim", "heartbeat", "settle", "cancel", "retry", "change"}


class Pooled:
    """A server, and the way to it through the pool."""

    def __init__(self, world: World, url: str) -> None:
        self.world = world
        self.url = url


@pytest.fixture(scope="module")
async def pooled() -> AsyncIterator[Pooled]:
    """A server of its own with a pool before it."""
    async with open_world() as world, open_bouncer(world.server.folder) as url:
        yield Pooled(world, url)


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[EventDict]]:
    """What is logged while things go wrong; drawing all of it would be most of the work."""
    with capture_logs() as captured:
        yield captured


async def test_a_client_of_the_pool_meets_several_server_connections(pooled: Pooled) -> None:
    async def backends(connection: asyncpg.Connection[asyncpg.Record]) -> set[int]:
        return {await connection.fetchval("SELECT pg_backend_pid()") for _ in range(200)}

    clients = [await asyncpg.connect(pooled.url, statement_cache_size=0) for _ in range(4)]
    try:
        met = await asyncio.gather(*map(backends, clients))
    finally:
        for client in clients:
            await client.close()
    assert 1 < max(map(len, met)) <= SERVER_CONNECTIONS


class Reader:
    """Reads as one tenant and as the other, in turn, and notes what each was shown."""

    def __init__(self, store: PostgresStore, tenants: list[str]) -> None:
        self.jobs = Jobs(store, lease_seconds=LEASE_SECONDS)
        self.events = Events(store)
        self.tenants = tenants
        self.shown: dict[str, set[str]] = {tenant: set() for tenant in tenants}
        self.reads = 0

    async def read(self, times: int) -> None:
        """Read many times, in every way there is."""
        for number in range(times):
            tenant, other = self.tenants[:: 1 if number % 2 else -1]
            match number % 8 // 2:
                case 0:
                    page = await self.jobs.list(tenant, limit=5)
                    self.shown[tenant].update(job.id for job in page.items)
                    assert {job.tenant for job in page.items} <= {tenant}
                case 1:
                    events = await self.events.read(tenant, limit=5)
                    told = [msgspec.json.decode(event.data)["id"] for event in events]
                    self.shown[tenant].update(told)
                case 2 if self.shown[other]:
                    job_id = next(iter(self.shown[other]))
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
async def test_a_store_behind_the_pool_keeps_its_promises(pooled: Pooled) -> None:
    recorder = CountingRecorder()
    stop = asyncio.Event()
    seed = random.randrange(2**32)
    async with pooled.world.store(pooled.url, pooled=True) as store:
        shift = Shift(store, recorder, seed=seed)
        await shift.prepare()
        reader = Reader(store, [(await Tenants(store).get(slug)).id for slug in SLUGS])
        async with asyncio.TaskGroup() as group:
            group.create_task(shift.work_until(stop, times=2))
            await asyncio.gather(*[reader.read(READS_OF_EACH) for _ in range(READERS)])
            await eventually(lambda: _has_every_end(reader))
            stop.set()
        last = Shift(store, recorder, seed=seed)
        await last.prepare()
        assert await last.drain(DRAIN_SECONDS_MAX), "J9 the work did not come to an end"
    history = recorder.history()
    tables = await pooled.world.check(history, quiet=False)
    print(f"{recorder.acked} acknowledged calls, {reader.reads} reads, {len(tables.jobs)} jobs, seed {seed}")
    assert {job.status for job in tables.jobs.values()} == ENDS
    assert {call.verb for call in history.calls.values() if call.acked} == VERBS
    for tenant, shown in reader.shown.items():
        assert {tables.jobs[job_id].tenant for job_id in shown} == {tenant}


async def _has_every_end(reader: Reader) -> bool:
    counts = [(await reader.jobs.summary(tenant)).counts for tenant in reader.tenants]
    return all(any(count[JobStatus(end)] for count in counts) for end in ENDS)


async def test_the_pool_would_break_a_store_that_does_not_know_of_it(pooled: Pooled) -> None:
    async def use(store: PostgresStore) -> None:
        jobs = Jobs(store, lease_seconds=LEASE_SECONDS)
        tenant = (await Tenants(store).ensure_default()).id
        for _ in range(20):
            job = (await jobs.enqueue(tenant, "unaware")).job
            await jobs.get(tenant, job.id)

    with pytest.raises(StoreMisconfigured, match="INGOT_DATABASE_POOLED"):
        async with pooled.world.store(pooled.url, pooled=False) as store:
            await asyncio.gather(*[use(store) for _ in range(8)])


async def test_the_same_use_is_fine_for_one_that_does(pooled: Pooled) -> None:
    async with pooled.world.store(pooled.url, pooled=True) as store:
        jobs = Jobs(store, lease_seconds=LEASE_SECONDS)
        tenant = (await Tenants(store).ensure_default()).id

        async def use() -> None:
            for _ in range(20):
                job = (await jobs.enqueue(tenant, "aware")).job
                assert await jobs.get(tenant, job.id) == job

        await asyncio.gather(*[use() for _ in range(8)])
