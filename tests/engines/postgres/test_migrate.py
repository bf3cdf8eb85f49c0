"""Migrating a PostgreSQL database, once or concurrently, and refusing databases that do not match."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from ingot.engines.postgres import PostgresStore, migrate
from ingot.engines.postgres.migrate import ROLES
from ingot.engines.postgres.revision import migrations
from ingot.identity import Tenants
from ingot.jobs import Jobs, JobStatus
from ingot.kernel.clock import SystemClock
from ingot.kernel.errors import StoreError, StoreMisconfigured, StoreTooNew
from tests.postgres import Server, own_server, with_database

REPEATS = 3
MIGRATIONS_UNDER_LOAD = 10
ADMIN = "boss"  # Can create roles and databases, and is not a superuser.
PASSWORD = "s3cret"
TENANT = "019a0000-0000-7000-8000-000000000001"
# Everything a migration creates: tables, views, sequences, functions with their text, policies and privileges.
SCHEMA = """
SELECT 'relation', relname::text, relkind::text, coalesce(relacl::text, ''), relrowsecurity::text FROM pg_class
WHERE relnamespace = 'ingot'::regnamespace
UNION ALL
SELECT 'column', attrelid::regclass::text, attname::text, format_type(atttypid, atttypmod), attnotnull::text
FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
WHERE relnamespace = 'ingot'::regnamespace AND attnum > 0
UNION ALL
SELECT 'function', oid::regprocedure::text, md5(pg_get_functiondef(oid)), coalesce(proacl::text, ''), '' FROM pg_proc
WHERE pronamespace = 'ingot'::regnamespace
UNION ALL
SELECT 'policy', tablename::text, policyname::text, roles::text, coalesce(qual, '') FROM pg_policies
WHERE schemaname = 'ingot'
UNION ALL
SELECT 'migration', number::text, name, applied_at::text, '' FROM ingot.migrations
ORDER BY 1, 2, 3, 4, 5
"""


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[Server]:
    """A separate server, because roles are shared by all its databases."""
    with own_server(fresh=True) as server:
        await run(server.url, f"CREATE ROLE {ADMIN} LOGIN CREATEDB CREATEROLE")
        yield server


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[EventDict]]:
    """The log entries of the test."""
    with capture_logs() as captured:
        yield captured


async def run(url: str, *statements: str) -> None:
    """Run statements one by one."""
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def schema_of(url: str) -> list[tuple[Any, ...]]:
    """Everything that migrations created in a database."""
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(SCHEMA)]
    finally:
        await connection.close()


async def make_databases(server: Server, *names: str) -> list[str]:
    """Make empty databases on a server without roles of Ingot, and return their URLs for the owner."""
    drop = [f"DROP DATABASE IF EXISTS {name}" for name in ("one", "two", "three")]
    drop += [f"DROP ROLE IF EXISTS {role}" for role in ROLES]
    await run(server.url, *drop, *[f"CREATE DATABASE {name} OWNER {ADMIN}" for name in names])
    return [with_database(server.url, name, ADMIN) for name in names]


async def open_store(url: str) -> None:
    """Open a store and close it."""
    store = await PostgresStore.open(url, clock=SystemClock(), lease_seconds=5.0)
    await store.close()


@pytest.mark.parametrize("number", range(REPEATS))
async def test_concurrent_migrations_of_one_database_apply_each_step_once(server: Server, number: int) -> None:
    (url,) = await make_databases(server, "one")
    applied = await asyncio.gather(*[migrate(url) for _ in range(4)])
    assert sorted(map(len, applied)) == [0, 0, 0, len(migrations())]
    await open_store(with_database(server.url, "one", "ingot_server"))


@pytest.mark.parametrize("number", range(REPEATS))
async def test_databases_that_share_roles_can_be_migrated_concurrently(server: Server, number: int) -> None:
    names = ("one", "two", "three")
    urls = await make_databases(server, *names)
    applied = await asyncio.gather(*map(migrate, urls))
    assert list(map(len, applied)) == [len(migrations())] * len(names)
    for name in names:
        await open_store(with_database(server.url, name, "ingot_server"))


async def test_a_repeated_migration_changes_nothing(server: Server) -> None:
    (url,) = await make_databases(server, "one")
    assert await migrate(url) == migrations()
    before = await schema_of(url)
    assert len(before) > 100
    assert await migrate(url) == []
    assert await schema_of(url) == before


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE FUNCTION ingot.gone() RETURNS integer LANGUAGE sql AS 'SELECT 1'"],
        ["CREATE FUNCTION ingot.claim(jobs integer) RETURNS integer LANGUAGE sql AS 'SELECT jobs'"],
        [
            "DROP FUNCTION ingot.clock()",
            "CREATE FUNCTION ingot.clock() RETURNS text LANGUAGE sql AS $$ SELECT 'late' $$",
        ],
        ["GRANT EXECUTE ON FUNCTION ingot.settle, ingot.worker_tenant TO ingot_worker"],
        ["GRANT SELECT ON ingot.job_rows TO ingot_worker"],
    ],
    ids=["additional function", "other arguments", "other result", "granted function", "granted view"],
)
async def test_functions_and_grants_of_another_version_are_removed(server: Server, statements: list[str]) -> None:
    (url,) = await make_databases(server, "one")
    await migrate(url)
    before = await schema_of(url)
    await run(url, "SET ROLE ingot_owner", *statements, "COMMENT ON SCHEMA ingot IS 'of another program'")
    assert await schema_of(url) != before
    await migrate(url)
    assert await schema_of(url) == before


async def test_an_open_fold_does_not_block_a_migration(server: Server) -> None:
    (url,) = await make_databases(server, "one")
    await migrate(url)
    idle = await asyncpg.connect(with_database(server.url, "one", "ingot_server"))
    try:
        await idle.execute("BEGIN; SELECT ingot.fold_counts(1)")
        await run(url, "COMMENT ON SCHEMA ingot IS 'of another program'")
        async with asyncio.timeout(30):
            await migrate(url)
    finally:
        await idle.close()


async def test_totals_are_computed_from_the_counts_of_an_earlier_version(server: Server) -> None:
    (url,) = await make_databases(server, "one")
    await migrate(url)
    (migration,) = [migration for migration in migrations() if migration.name == "many_types"]
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SET ROLE ingot_owner; DROP TABLE ingot.count_totals; DROP INDEX ingot.jobs_by_tenant")
        await connection.execute(
            "INSERT INTO ingot.counts SELECT $1::uuid, 'type ' || n, 'queued', n FROM generate_series(1, 4) AS n",
            TENANT,
        )
        async with connection.transaction():
            await connection.execute(migration.text)
        rows = await connection.fetch("SELECT tenant::text, status, jobs FROM ingot.count_totals")
        assert [tuple(row) for row in rows] == [(TENANT, "queued", 10)]
    finally:
        await connection.close()


async def test_types_are_found_in_the_jobs_of_an_earlier_version(server: Server) -> None:
    (url,) = await make_databases(server, "one")
    await migrate(url)
    (migration,) = [migration for migration in migrations() if migration.name == "type_limit"]
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SET ROLE ingot_owner; DROP TABLE ingot.tenant_types, ingot.type_counts")
        await connection.execute("INSERT INTO ingot.tenants VALUES ($1, 'one', 1, 'UTC', '{}')", TENANT)
        await connection.execute(
            "INSERT INTO ingot.jobs (id, tenant, type, payload, created_at, source, depth) "
            "SELECT gen_random_uuid(), $1, 'type ' || n % 2, 'null', 0, 'manual', 0 FROM generate_series(1, 5) AS n",
            TENANT,
        )
        async with connection.transaction():
            await connection.execute(migration.text)
        rows = await connection.fetch("SELECT tenant::text, type, unused FROM ingot.tenant_types ORDER BY type")
        assert [tuple(row) for row in rows] == [(TENANT, "type 0", None), (TENANT, "type 1", None)]
        assert await connection.fetchval("SELECT types FROM ingot.type_counts WHERE tenant = $1", TENANT) == 2
    finally:
        await connection.close()


async def test_a_store_keeps_working_while_functions_are_replaced(server: Server) -> None:
    (url,) = await make_databases(server, "one")
    await migrate(url)
    store = await PostgresStore.open(
        with_database(server.url, "one", "ingot_server"), clock=SystemClock(), lease_seconds=60
    )
    jobs = Jobs(store, lease_seconds=60)
    tenant = (await Tenants(store).ensure_default()).id
    done = migrated = 0

    async def work() -> None:
        nonlocal done
        while migrated < MIGRATIONS_UNDER_LOAD:
            await jobs.enqueue(tenant, "noop")
            for claim in await jobs.claim("w", ["noop"]):
                await jobs.complete(claim)
                done += 1

    workers = asyncio.gather(*[work() for _ in range(8)])
    while migrated < MIGRATIONS_UNDER_LOAD:
        await run(url, "COMMENT ON SCHEMA ingot IS 'of another program'")
        await migrate(url)
        migrated += 1
    await workers
    assert (await jobs.summary(tenant)).counts[JobStatus.SUCCEEDED] == done > MIGRATIONS_UNDER_LOAD
    await store.close()


async def test_views_of_others_on_our_views_are_kept(server: Server) -> None:
    (url,) = await make_databases(server, "one")
    await migrate(url)
    await run(
        with_database(server.url, "one", "postgres"),
        "CREATE VIEW theirs AS SELECT id, status FROM ingot.job_rows",
        "COMMENT ON SCHEMA ingot IS 'of another program'",
    )
    await migrate(url)
    await run(with_database(server.url, "one", "postgres"), "SELECT * FROM theirs")


async def test_a_newer_schema_is_refused(server: Server) -> None:
    (url,) = await make_databases(server, "one")
    await migrate(url)
    await run(url, "SET ROLE ingot_owner", "INSERT INTO ingot.migrations VALUES (999, 'of_the_future')")
    before = await schema_of(url)
    with pytest.raises(StoreTooNew, match="999"):
        await migrate(url)
    with pytest.raises(StoreTooNew, match="999"):
        await open_store(with_database(server.url, "one", "ingot_server"))
    assert await schema_of(url) == before


async def test_an_unmigrated_database_is_refused_with_a_hint(server: Server) -> None:
    urls = await make_databases(server, "one", "two")
    await migrate(urls[0])
    with pytest.raises(StoreMisconfigured, match="schema 0") as raised:
        await open_store(with_database(server.url, "two", "ingot_server"))
    assert "INGOT_DATABASE_OWNER_URL" in raised.value.hint


async def test_a_server_without_our_roles_is_refused_with_a_hint(server: Server) -> None:
    await make_databases(server, "one")
    with pytest.raises(StoreError) as raised:
        await open_store(with_database(server.url, "one", "ingot_server"))
    assert "INGOT_DATABASE_OWNER_URL" in raised.value.hint


async def test_a_role_that_bypasses_row_security_is_refused(server: Server) -> None:
    (url,) = await make_databases(server, "one")
    await migrate(url)
    for role in ("postgres", ADMIN):
        with pytest.raises(StoreMisconfigured, match=role) as raised:
            await open_store(with_database(server.url, "one", role))
        assert "ingot_server" in str(raised.value)


@pytest.mark.parametrize("call", [open_store, migrate])
@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:1/ingot", "127.0.0.1"),
        pytest.param(
            "/ingot?host=/var/tmp/no-server-here",
            "/var/tmp/no-server-here",
        ),
        pytest.param(
            "no-server-here.invalid/ingot",
            "no-server-here.invalid",
        ),
    ],
    ids=["refused", "no-socket", "no-host"],
)
async def test_an_unreachable_server_is_named_without_the_password(call: Any, address: str, expected: str) -> None:
    with pytest.raises(StoreError) as raised:
        await call(f"postgresql://ingot_server:{PASSWORD}@{address}")
    assert PASSWORD not in f"{raised.value}{raised.value.hint}"
    assert expected in str(raised.value)


@pytest.mark.parametrize("call", [open_store, migrate])
async def test_a_password_in_the_query_of_a_url_is_not_shown(call: Any) -> None:
    with pytest.raises(StoreError) as raised:
        await call(f"postgresql://127.0.0.1:1/ingot?user=ingot_server&password={PASSWORD}")
    assert PASSWORD not in f"{raised.value}{raised.value.hint}"
    assert "127.0.0.1:1" in str(raised.value)


@pytest.mark.parametrize("call", [open_store, migrate])
async def test_a_malformed_url_is_refused_without_its_password(call: Any) -> None:
    with pytest.raises(StoreError) as raised:
        await call(f"postgresql://ingot_server:{PASSWORD}/more@127.0.0.1/ingot")
    assert PASSWORD not in f"{raised.value}{raised.value.hint}"


async def test_a_role_that_cannot_create_roles_cannot_migrate(server: Server) -> None:
    await make_databases(server, "one")
    await run(server.url, "DROP ROLE IF EXISTS poor", "CREATE ROLE poor LOGIN")
    with pytest.raises(StoreError):
        await migrate(with_database(server.url, "one", "poor"))
