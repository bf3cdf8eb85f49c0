"""Migrations of the schema: numbered and forward only.

Missing migrations, and all views, functions and grants if any of them changed, are applied in one transaction.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import asyncpg

from ingot.engines.migrations import Migration
from ingot.engines.postgres.command_scope import CALL_SECONDS_MAX
from ingot.engines.postgres.connection import (
    UNREACHABLE_ERRORS,
    close_connection,
    endpoint_of,
    invalid_url_error,
    translate_error,
)
from ingot.engines.postgres.listener import CHANNEL
from ingot.engines.postgres.revision import AppliedRevision, migrations, schema_digest, sql_texts
from ingot.engines.postgres.schema_check import expect_not_newer
from ingot.engines.postgres.sql import SQL
from ingot.kernel.errors import StoreBusy
from ingot.kernel.logs import configure_logs

ROLE_TRIES_MAX: Final = 20
ROLES: Final = {"ingot_owner": "NOLOGIN", "ingot_server": "LOGIN", "ingot_worker": "NOLOGIN", "ingot_app": "NOLOGIN"}
# Reads must not depend on statistics either. They return few rows, found by an index.
SERVER_SETTINGS: Final = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
}
# A function with the number in its text costs nothing to call.
_POSITION_OFFSET: Final = (
    "CREATE OR REPLACE FUNCTION ingot.position_offset() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT {}::bigint'"
)
_CREATED_CONCURRENTLY_ERRORS: Final = (
    asyncpg.UniqueViolationError,
    asyncpg.DuplicateObjectError,
    asyncpg.DuplicateTableError,
)
_CHANGED_SIGNATURE_ERRORS: Final = (asyncpg.InvalidFunctionDefinitionError, asyncpg.InvalidTableDefinitionError)
LOCK_TRIES_MAX: Final = 10


async def migrate(owner_url: str) -> list[Migration]:
    """Migrate a database to the schema of this version, and return the migrations that were missing.

    The role in `owner_url` must be able to create roles and schemas. Several processes can run this at the same time.
    Raises `StoreTooNew` for a database that a later version has migrated, without changing it, and `StoreError` if it
    cannot be reached.
    """
    configure_logs()  # Tracebacks must not show the URL, which may contain a password.
    try:
        connection = await asyncpg.connect(owner_url, timeout=CALL_SECONDS_MAX)
    except ValueError:
        raise invalid_url_error("INGOT_DATABASE_OWNER_URL") from None
    except (*UNREACHABLE_ERRORS, asyncpg.PostgresError) as error:
        raise translate_error(error, action="reached", endpoint=endpoint_of(owner_url)) from error
    try:
        await _create_roles(connection)
        return await _apply(connection)
    except (*UNREACHABLE_ERRORS, asyncpg.PostgresError) as error:
        raise translate_error(error, action="migrated", endpoint=endpoint_of(owner_url)) from error
    finally:
        await close_connection(connection)


async def schema_version(connection: asyncpg.Connection[asyncpg.Record]) -> int:
    """Return the schema version of a database, 0 without a schema."""
    if await connection.fetchval("SELECT to_regclass('ingot.migrations')") is None:
        return 0
    return int(await connection.fetchval("SELECT coalesce(max(number), 0) FROM ingot.migrations"))


async def _create_roles(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Create the missing roles. Roles belong to the whole server, so another migration may be creating them now."""
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
    await _allow_ending_sessions(connection)
    if not await connection.fetchval(SQL.can_be_owner):
        with suppress(asyncpg.UniqueViolationError):  # Another migration has just granted it.
            await connection.execute("GRANT ingot_owner TO CURRENT_USER")


async def _set_up_server_role(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    for setting, value in SERVER_SETTINGS.items():
        for _ in range(ROLE_TRIES_MAX):
            settings = await connection.fetchval("SELECT rolconfig FROM pg_roles WHERE rolname = 'ingot_server'")
            if f"{setting}={value}" in (settings or []):
                break
            # Another migration on this server may be changing the role at the same time.
            with suppress(asyncpg.InternalServerError, asyncpg.UniqueViolationError):
                await connection.execute(f"ALTER ROLE ingot_server SET {setting} = {value}")


async def _allow_ending_sessions(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Let functions end sessions whose transactions are too old. Not every role that migrates may grant this."""
    for role in ("pg_signal_backend", "pg_read_all_stats"):
        if not await connection.fetchval("SELECT pg_has_role('ingot_owner', $1, 'USAGE')", role):
            # Another migration on this server may be granting the same.
            with suppress(
                asyncpg.InsufficientPrivilegeError, asyncpg.InternalServerError, asyncpg.UniqueViolationError
            ):
                await connection.execute(f"GRANT {role} TO ingot_owner")


async def _apply(connection: asyncpg.Connection[asyncpg.Record]) -> list[Migration]:
    with suppress(*_CREATED_CONCURRENTLY_ERRORS):
        await connection.execute("CREATE SCHEMA IF NOT EXISTS ingot AUTHORIZATION ingot_owner")
    await connection.execute("SET ROLE ingot_owner")
    with suppress(*_CREATED_CONCURRENTLY_ERRORS):
        await connection.execute(SQL.create_migrations_table)
    if not await _missing_migrations(connection) and await _is_current(connection):
        return []
    recreate = False
    for _ in range(LOCK_TRIES_MAX):
        try:
            return await _apply_in_transaction(connection, recreate=recreate)
        except _CHANGED_SIGNATURE_ERRORS:  # PostgreSQL cannot replace these functions or views. Drop them first.
            recreate = True
        except asyncpg.LockNotAvailableError:
            await asyncio.sleep(1.0)
    raise StoreBusy(
        "The migration could not lock the tables. Nothing was changed.",
        hint="End the transactions that lock them. pg_stat_activity lists old transactions.",
    )


async def _apply_in_transaction(connection: asyncpg.Connection[asyncpg.Record], *, recreate: bool) -> list[Migration]:
    """Apply everything that is missing in one transaction. Lock timeouts bound how long others wait for it."""
    async with connection.transaction():
        await connection.execute("SET LOCAL lock_timeout = '3s'")
        await connection.execute("LOCK TABLE ingot.migrations IN SHARE ROW EXCLUSIVE MODE")
        missing = await _missing_migrations(connection)
        for migration in missing:
            await connection.execute(migration.text)
            await connection.execute(SQL.record_migration, migration.number, migration.name)
        if missing or not await _is_current(connection):
            for text in (SQL.drop_views, SQL.drop_stale_functions) if recreate else ():
                await connection.execute(text)
            await _set_position_offset(connection)
            views, *functions, grants = sql_texts()
            for text in (
                views,
                *functions,
                SQL.drop_stale_functions,
                grants,
                f"COMMENT ON SCHEMA ingot IS '{AppliedRevision.of_program().comment()}'",
                f"NOTIFY {CHANNEL}",  # Programs that listen check now whether they still fit.
            ):
                await connection.execute(text)
        if not await connection.fetchval("SELECT ingot.at_home()"):
            for text in (SQL.lock_home, SQL.set_home, SQL.reset_lease_transactions):
                await connection.execute(text)
            await _set_position_offset(connection)
        return missing


async def _missing_migrations(connection: asyncpg.Connection[asyncpg.Record]) -> list[Migration]:
    """Return the missing migrations. Raises `StoreTooNew`: functions of this version must not replace later ones."""
    newest = await schema_version(connection)
    expect_not_newer(await _applied_revision(connection), newest)
    return [migration for migration in migrations() if migration.number > newest]


async def _is_current(connection: asyncpg.Connection[asyncpg.Record]) -> bool:
    """Whether the SQL of this version was applied last, and on this server."""
    digest = (await _applied_revision(connection)).digest
    return bool(digest == schema_digest() and await connection.fetchval("SELECT ingot.at_home()"))


async def _applied_revision(connection: asyncpg.Connection[asyncpg.Record]) -> AppliedRevision:
    return AppliedRevision.parse(await connection.fetchval(SQL.applied_revision))


async def _set_position_offset(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    offset = await connection.fetchval("SELECT coalesce(max(shift), 0) FROM ingot.home")
    await connection.execute(_POSITION_OFFSET.format(offset))
