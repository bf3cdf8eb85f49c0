"""Migrations: numbered, forward only, each in a transaction of its own; functions and grants whole, every time."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib import resources
from typing import Final

import asyncpg

from ingot.engines.postgres.connection import AWAY, explain, place, unreadable
from ingot.engines.steps import Migration, read_migrations
from ingot.kernel.errors import StoreTooNew

ROLE_TRIES_MAX: Final = 20
ROLES: Final = {"ingot_owner": "NOLOGIN", "ingot_server": "LOGIN", "ingot_worker": "NOLOGIN"}
# Reads must not depend on statistics either: what they ask for is small, and found by its key.
SERVER_SETTINGS: Final = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
}
_LEDGER: Final = """
CREATE TABLE IF NOT EXISTS ingot.migrations (
    number integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now()
)
"""
# From PostgreSQL 16 on, who made a role is its member and cannot become it.
_CAN_BE_OWNER: Final = """
SELECT pg_has_role(
    'ingot_owner', CASE WHEN current_setting('server_version_num')::integer < 160000 THEN 'MEMBER' ELSE 'SET' END
)
"""
# The rows came from a dump of another server, or are new: the event log goes on above what they brought along, and what
# they say of transactions means nothing here.
_MOVE_IN: Final = """
    DO $$
    DECLARE
        here bigint := (SELECT system_identifier FROM pg_control_system());
    BEGIN
        IF NOT EXISTS (SELECT FROM ingot.home WHERE server = here) THEN
            LOCK TABLE ingot.events, ingot.leases IN EXCLUSIVE MODE;
            WITH old AS (DELETE FROM ingot.home RETURNING shift)
            INSERT INTO ingot.home (server, shift) SELECT here, greatest(
                (SELECT shift FROM old),
                (SELECT max(position) FROM ingot.events) + 1 - pg_current_xact_id()::text::bigint,
                0
            );
            UPDATE ingot.leases SET changed_by = '3';
        END IF;
    END
    $$
"""
# What was applied last; a server that starts leaves those alone who are at work with the same.
_DIGEST: Final = "SELECT obj_description('ingot'::regnamespace, 'pg_namespace')"
# What an older program had is not left beside the new; what was replaced in this transaction stays.
_DROP_FUNCTIONS: Final = """
    DO $$
    DECLARE
        known regprocedure;
    BEGIN
        FOR known IN SELECT oid FROM pg_proc
        WHERE pronamespace = 'ingot'::regnamespace AND xmin <> pg_current_xact_id()::xid LOOP
            EXECUTE format('DROP FUNCTION %s', known);
        END LOOP;
    END
    $$
"""
_DROP_VIEWS: Final = "DROP VIEW IF EXISTS ingot.job_rows, ingot.attempts"
# In the text of a function it costs nothing to read.
_SHIFT: Final = "CREATE OR REPLACE FUNCTION ingot.shift() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT {}::bigint'"
_MADE_MEANWHILE: Final = (asyncpg.UniqueViolationError, asyncpg.DuplicateObjectError, asyncpg.DuplicateTableError)
_CHANGED_SHAPE: Final = (asyncpg.InvalidFunctionDefinitionError, asyncpg.InvalidTableDefinitionError)


def migrations() -> list[Migration]:
    """All steps this program knows, in order."""
    return read_migrations("ingot.engines.postgres.migrations")


async def migrate(owner_url: str) -> list[Migration]:
    """Bring a database to this program's schema, and return the steps that were missing.

    `owner_url` is of a role that may make roles and schemas. Safe to run from two places at once. Raises
    `StoreTooNew` for a database of a later version, and `StoreError` when it cannot be reached.
    """
    try:
        connection = await asyncpg.connect(owner_url)
    except ValueError:
        raise unreadable("INGOT_DATABASE_OWNER_URL") from None
    except (*AWAY, asyncpg.PostgresError) as error:
        raise explain(error, doing="reached", where=place(owner_url)) from error
    try:
        await _make_roles(connection)
        return await _apply(connection)
    except (*AWAY, asyncpg.PostgresError) as error:
        raise explain(error, doing="migrated", where=place(owner_url)) from error
    finally:
        await connection.close()


async def check(connection: asyncpg.Connection[asyncpg.Record]) -> int:
    """The schema that a database has; 0 when it has none."""
    if await connection.fetchval("SELECT to_regclass('ingot.migrations')") is None:
        return 0
    return int(await connection.fetchval("SELECT coalesce(max(number), 0) FROM ingot.migrations"))


async def _make_roles(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Roles belong to the whole server: another database of it may be making them now."""
    for role, login in ROLES.items():
        await connection.execute(f"""
            DO $$ BEGIN
                IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN
                    CREATE ROLE {role} {login};
                END IF;
            EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
            END $$
        """)
    await _set_up_server_role(connection)
    if not await connection.fetchval(_CAN_BE_OWNER):
        with suppress(asyncpg.UniqueViolationError):  # Granted from another database at this moment.
            await connection.execute("GRANT ingot_owner TO CURRENT_USER")


async def _set_up_server_role(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    for setting, value in SERVER_SETTINGS.items():
        for _ in range(ROLE_TRIES_MAX):
            settings = await connection.fetchval("SELECT rolconfig FROM pg_roles WHERE rolname = 'ingot_server'")
            if f"{setting}={value}" in (settings or []):
                break
            # Somebody else, for this or another database of this server, may be setting it at this moment.
            with suppress(asyncpg.InternalServerError, asyncpg.UniqueViolationError):
                await connection.execute(f"ALTER ROLE ingot_server SET {setting} = {value}")


async def _apply(connection: asyncpg.Connection[asyncpg.Record]) -> list[Migration]:
    with suppress(*_MADE_MEANWHILE):
        await connection.execute("CREATE SCHEMA IF NOT EXISTS ingot AUTHORIZATION ingot_owner")
    await connection.execute("SET ROLE ingot_owner")
    with suppress(*_MADE_MEANWHILE):
        await connection.execute(_LEDGER)
    known, newest = migrations(), await check(connection)
    if newest > known[-1].number:
        raise StoreTooNew(f"The database is at schema {newest}; this program knows up to {known[-1].number}.")
    missing = [step for step in known if await _take(connection, step)]
    async with _alone(connection):
        await connection.execute(_MOVE_IN)
    texts = [_SHIFT.format(await connection.fetchval("SELECT shift FROM ingot.home")), *_definitions()]
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    try:
        await _define(connection, texts, digest)
    except _CHANGED_SHAPE:  # What answers in another shape cannot be replaced under those who are at work.
        await _define(connection, [_DROP_VIEWS, _DROP_FUNCTIONS, *texts], digest)
    return missing


@asynccontextmanager
async def _alone(connection: asyncpg.Connection[asyncpg.Record]) -> AsyncIterator[None]:
    """A transaction of one migration at a time. No other role can take this lock."""
    async with connection.transaction():
        await connection.execute("LOCK TABLE ingot.migrations IN EXCLUSIVE MODE")
        yield


async def _take(connection: asyncpg.Connection[asyncpg.Record], step: Migration) -> bool:
    """Take a step that is missing."""
    async with _alone(connection):
        if step.number <= await check(connection):
            return False
        await connection.execute(step.text)
        await connection.execute("INSERT INTO ingot.migrations VALUES ($1, $2)", step.number, step.name)
        return True


async def _define(connection: asyncpg.Connection[asyncpg.Record], texts: list[str], digest: str) -> None:
    """Put what is applied whole there, when it is not what was applied last."""
    async with _alone(connection):
        if await connection.fetchval(_DIGEST) != digest:
            for text in (*texts, _DROP_FUNCTIONS, f"COMMENT ON SCHEMA ingot IS '{digest}'"):
                await connection.execute(text)


def _definitions() -> list[str]:
    """The SQL that is applied whole: the view, all functions, and who may use them."""
    package = resources.files("ingot.engines.postgres")
    functions = sorted(package.joinpath("functions").iterdir(), key=lambda file: file.name)
    texts = [file.read_text(encoding="utf-8") for file in functions if file.name.endswith(".sql")]
    before, after = (package.joinpath(name).read_text(encoding="utf-8") for name in ("views.sql", "grants.sql"))
    return [before, *texts, after]
