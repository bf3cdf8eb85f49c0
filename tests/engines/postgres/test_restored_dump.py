"""A dump restored on another server: whose transactions have other numbers, smaller ones here."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from ingot.engines.event_ids import BATCH_EVENTS_MAX
from ingot.engines.postgres import PostgresStore, make_worker_role, migrate
from ingot.events import Events
from ingot.identity import Tenants
from ingot.jobs import Jobs, JobStatus
from ingot.kernel.clock import SystemClock
from ingot.kernel.errors import StoreMisconfigured
from tests.postgres import Server, binaries, own_server, with_database

DATABASE = "moved"
BURN = "DO $$ BEGIN FOR i IN 1..5000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    """The server a database comes from, and the one it goes to."""
    with own_server(fresh=True) as old, own_server(fresh=True) as new:
        yield old, new


@asynccontextmanager
async def opened(server: Server) -> AsyncIterator[PostgresStore]:
    """The store on a server."""
    url = with_database(server.url, DATABASE, "ingot_server")
    store = await PostgresStore.open(url, clock=SystemClock(), lease_seconds=60)
    try:
        yield store
    finally:
        await store.close()


async def run(server: Server, statement: str, database: str = "postgres") -> None:
    connection = await asyncpg.connect(with_database(server.url, database, "postgres"))
    await connection.execute(statement)
    await connection.close()


def move(old: Server, new: Server) -> None:
    """Dump the roles and the database, and restore both."""
    source, target = (with_database(server.url, DATABASE, "postgres") for server in (old, new))
    dumps = (
        (["pg_dumpall", "--roles-only", "--dbname", old.url], new.url),
        (["pg_dump", "--dbname", source], target),
    )
    for (program, *options), into in dumps:
        dump = subprocess.run([str(binaries() / program), *options], check=True, capture_output=True)
        psql = [str(binaries() / "psql"), "--quiet", "--dbname", into]
        restored = subprocess.run(psql, input=dump.stdout, check=True, capture_output=True)
        assert set(restored.stderr.decode().splitlines()) <= {'ERROR:  role "postgres" already exists'}


async def test_a_dump_restored_on_another_server_goes_on(servers: tuple[Server, Server]) -> None:
    old, new = servers
    for server in servers:
        await run(server, f"CREATE DATABASE {DATABASE}")
    await run(old, BURN)
    await migrate(with_database(old.url, DATABASE, "postgres"))
    async with opened(old) as store:
        jobs = Jobs(store, lease_seconds=60)
        tenant = (await Tenants(store).ensure_default()).id
        waiting = await jobs.enqueue(tenant, "noop")
        running = await jobs.enqueue(tenant, "slow")
        (claim,) = await jobs.claim("w", ["slow"])
        told = await Events(store).read(tenant)
    password = await make_worker_role(with_database(old.url, DATABASE, "postgres"), "direct", tenant)
    move(old, new)

    with pytest.raises(StoreMisconfigured, match="another server") as refused:
        async with opened(new):
            pass
    assert "INGOT_DATABASE_OWNER_URL" in refused.value.hint
    worker = await asyncpg.connect(with_database(new.url, DATABASE, "direct"), password=password)
    with pytest.raises(asyncpg.RaiseError, match="another server"):
        await worker.fetch("SELECT * FROM ingot.worker_claim('{noop}', 'w', NULL, NULL, 1, 60000000)")
    await worker.close()
    for _ in range(2):  # Once is enough, and again changes nothing.
        await migrate(with_database(new.url, DATABASE, "postgres"))

    async with opened(new) as store:
        jobs = Jobs(store, lease_seconds=60)
        assert (await Events(store).read(tenant)) == told
        await jobs.heartbeat(claim.job.id, claim.fence)
        assert (await jobs.cancel(tenant, running.job.id)).cancel_requested
        await jobs.complete(claim)
        (again,) = await jobs.claim("w", ["noop"])
        await jobs.complete(again)
        assert again.job.id == waiting.job.id
        since = await Events(store).read(tenant, after=told[-1].id)
        names = [event.name for event in since]
        assert names == ["job.updated", "job.completed", "job.started", "job.completed"]
        assert [event.id for event in told + since] == sorted(event.id for event in told + since)
        assert (await Events(store).read(tenant)) == told + since
        assert (await jobs.summary(tenant)).counts[JobStatus.SUCCEEDED] == 2


async def test_a_dump_restored_on_a_server_that_is_ahead_keeps_its_order(servers: tuple[Server, Server]) -> None:
    old, new = servers
    for server in servers:
        await run(server, f"CREATE DATABASE {DATABASE}")
    await run(new, BURN)
    await migrate(with_database(old.url, DATABASE, "postgres"))
    async with opened(old) as store:
        tenant = (await Tenants(store).ensure_default()).id
        await Jobs(store, lease_seconds=60).enqueue(tenant, "noop")
        told = await Events(store).read(tenant)
    move(old, new)
    await migrate(with_database(new.url, DATABASE, "postgres"))
    async with opened(new) as store:
        await Jobs(store, lease_seconds=60).claim("w", ["noop"])
        assert [event.name for event in await Events(store).read(tenant, after=told[-1].id)] == ["job.started"]


async def test_a_transaction_older_than_the_migration_puts_nothing_before_what_came_along(
    servers: tuple[Server, Server],
) -> None:
    old, new = servers
    for server in servers:
        await run(server, f"CREATE DATABASE {DATABASE}")
    await run(old, BURN)
    await migrate(with_database(old.url, DATABASE, "postgres"))
    async with opened(old) as store:
        tenant = (await Tenants(store).ensure_default()).id
        await Jobs(store, lease_seconds=60).enqueue(tenant, "noop")
        told = await Events(store).read(tenant)
    move(old, new)
    before = await asyncpg.connect(with_database(new.url, DATABASE, "postgres"))
    await before.execute("BEGIN; SELECT pg_current_xact_id()")
    await run(new, BURN)
    await migrate(with_database(new.url, DATABASE, "postgres"))
    async with opened(new) as store:
        assert await Events(store).read(tenant) == told
        position = await before.fetchval("SELECT ingot.event_position(pg_current_xact_id())")
        assert position > int(told[-1].id, 16) // BATCH_EVENTS_MAX
    await before.close()


async def test_the_same_name_with_fewer_transactions_is_another_server(servers: tuple[Server, Server]) -> None:
    """As a copy of a server's files from before has: a later dump restored in it is ahead of it."""
    old, _ = servers
    await run(old, f"CREATE DATABASE {DATABASE}")
    await migrate(with_database(old.url, DATABASE, "postgres"))
    async with opened(old) as store:
        tenant = (await Tenants(store).ensure_default()).id
        await Jobs(store, lease_seconds=60).enqueue(tenant, "noop")
    await run(old, "UPDATE ingot.events SET position = position + 100000", DATABASE)
    with pytest.raises(StoreMisconfigured, match="another server"):
        async with opened(old):
            pass
    await migrate(with_database(old.url, DATABASE, "postgres"))
    async with opened(old) as store:
        await Jobs(store, lease_seconds=60).claim("w", ["noop"])
        assert [event.name for event in await Events(store).read(tenant)] == ["job.created", "job.started"]
