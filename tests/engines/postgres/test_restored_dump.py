"""A dump restored on another server, whose transaction IDs differ."""

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
ADVANCE_TRANSACTION_IDS = "DO $$ BEGIN FOR i IN 1..5000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    """The source and the target server of the dump."""
    with own_server(fresh=True) as old, own_server(fresh=True) as new:
        yield old, new


@asynccontextmanager
async def open_moved_store(server: Server) -> AsyncIterator[PostgresStore]:
    """Open the store on a server."""
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


async def test_a_dump_restored_on_another_server_continues_after_a_migration(servers: tuple[Server, Server]) -> None:
    old, new = servers
    for server in servers:
        await run(server, f"CREATE DATABASE {DATABASE}")
    await run(old, ADVANCE_TRANSACTION_IDS)
    await migrate(with_database(old.url, DATABASE, "postgres"))
    async with open_moved_store(old) as store:
        jobs = Jobs(store, lease_seconds=60)
        tenant = (await Tenants(store).ensure_default()).id
        waiting = await jobs.enqueue(tenant, "noop")
        running = await jobs.enqueue(tenant, "slow")
        (claim,) = await jobs.claim("w", ["slow"])
        events_before = await Events(store).read(tenant)
    password = await make_worker_role(with_database(old.url, DATABASE, "postgres"), "direct", tenant)
    move(old, new)

    with pytest.raises(StoreMisconfigured, match="another server") as refused:
        async with open_moved_store(new):
            pass
    assert "INGOT_DATABASE_OWNER_URL" in refused.value.hint
    worker = await asyncpg.connect(with_database(new.url, DATABASE, "direct"), password=password)
    with pytest.raises(asyncpg.RaiseError, match="another server"):
        await worker.fetch("SELECT * FROM ingot.worker_claim('{noop}', 'w', NULL, NULL, 1, 60000000)")
    await worker.close()
    for _ in range(2):  # The first migration adopts the server, the second changes nothing.
        await migrate(with_database(new.url, DATABASE, "postgres"))

    async with open_moved_store(new) as store:
        jobs = Jobs(store, lease_seconds=60)
        assert (await Events(store).read(tenant)) == events_before
        await jobs.heartbeat(claim.job.id, claim.fence)
        assert (await jobs.cancel(tenant, running.job.id)).cancel_requested
        await jobs.complete(claim)
        (again,) = await jobs.claim("w", ["noop"])
        await jobs.complete(again)
        assert again.job.id == waiting.job.id
        events_after = await Events(store).read(tenant, after=events_before[-1].id)
        names = [event.name for event in events_after]
        assert names == ["job.updated", "job.completed", "job.started", "job.completed"]
        assert [event.id for event in events_before + events_after] == sorted(
            event.id for event in events_before + events_after
        )
        assert (await Events(store).read(tenant)) == events_before + events_after
        assert (await jobs.summary(tenant)).counts[JobStatus.SUCCEEDED] == 2


async def test_a_dump_restored_on_a_server_with_higher_transaction_ids_keeps_its_order(
    servers: tuple[Server, Server],
) -> None:
    old, new = servers
    for server in servers:
        await run(server, f"CREATE DATABASE {DATABASE}")
    await run(new, ADVANCE_TRANSACTION_IDS)
    await migrate(with_database(old.url, DATABASE, "postgres"))
    async with open_moved_store(old) as store:
        tenant = (await Tenants(store).ensure_default()).id
        await Jobs(store, lease_seconds=60).enqueue(tenant, "noop")
        events_before = await Events(store).read(tenant)
    move(old, new)
    await migrate(with_database(new.url, DATABASE, "postgres"))
    async with open_moved_store(new) as store:
        await Jobs(store, lease_seconds=60).claim("w", ["noop"])
        assert [event.name for event in await Events(store).read(tenant, after=events_before[-1].id)] == ["job.started"]


async def test_events_of_a_transaction_older_than_the_migration_follow_restored_events(
    servers: tuple[Server, Server],
) -> None:
    old, new = servers
    for server in servers:
        await run(server, f"CREATE DATABASE {DATABASE}")
    await run(old, ADVANCE_TRANSACTION_IDS)
    await migrate(with_database(old.url, DATABASE, "postgres"))
    async with open_moved_store(old) as store:
        tenant = (await Tenants(store).ensure_default()).id
        await Jobs(store, lease_seconds=60).enqueue(tenant, "noop")
        events_before = await Events(store).read(tenant)
    move(old, new)
    before = await asyncpg.connect(with_database(new.url, DATABASE, "postgres"))
    await before.execute("BEGIN; SELECT pg_current_xact_id()")
    await run(new, ADVANCE_TRANSACTION_IDS)
    await migrate(with_database(new.url, DATABASE, "postgres"))
    async with open_moved_store(new) as store:
        assert await Events(store).read(tenant) == events_before
        position = await before.fetchval("SELECT ingot.event_position(pg_current_xact_id())")
        assert position > int(events_before[-1].id, 16) // BATCH_EVENTS_MAX
    await before.close()


async def test_a_server_with_lower_transaction_ids_counts_as_another_server(servers: tuple[Server, Server]) -> None:
    """An older copy of the files of a server into which a later dump is restored looks like this."""
    old, _ = servers
    await run(old, f"CREATE DATABASE {DATABASE}")
    await migrate(with_database(old.url, DATABASE, "postgres"))
    async with open_moved_store(old) as store:
        tenant = (await Tenants(store).ensure_default()).id
        await Jobs(store, lease_seconds=60).enqueue(tenant, "noop")
    await run(old, "UPDATE ingot.events SET position = position + 100000", DATABASE)
    with pytest.raises(StoreMisconfigured, match="another server"):
        async with open_moved_store(old):
            pass
    await migrate(with_database(old.url, DATABASE, "postgres"))
    async with open_moved_store(old) as store:
        await Jobs(store, lease_seconds=60).claim("w", ["noop"])
        assert [event.name for event in await Events(store).read(tenant)] == ["job.created", "job.started"]
