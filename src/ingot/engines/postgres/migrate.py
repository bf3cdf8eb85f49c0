"""Migrations: numbered and forward only, functions and grants whole: all that is missing in one transaction."""

from __future__ import annotations

import asyncio
import hashlib
import re
from contextlib import suppress
from importlib import import_module, resources
from typing import Final

import asyncpg

from ingot.engines.postgres.connection import AWAY, explain, place, unreadable
from ingot.engines.steps import Migration, read_migrations
from ingot.kernel.errors import StoreBusy, StoreTooNew
from ingot.kernel.logs import configure_logs

ROLE_TRIES_MAX: Final = 20
ROLES: Final = {"ingot_owner": "NOLOGIN", "ingot_server": "LOGIN", "ingot_worker": "NOLOGIN", "ingot_app": "NOLOGIN"}
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
# What was applied last.
_DIGEST: Final = "SELECT obj_description('ingot'::regnamespace, 'pg_namespace')"
# What an older program had is not left beside the new; what was put there in this transaction stays.
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
_BOUND: Final = re.compile(r"\{([a-z_.]+)\.([A-Z_]+)\}")
_DROP_VIEWS: Final = "DROP VIEW IF EXISTS ingot.job_rows, ingot.attempts, ingot.definitions, ingot.pauses"
# In the text of a function the number costs nothing to read.
_SHIFT: Final = "CREATE OR REPLACE FUNCTION ingot.shift() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT {}::bigint'"
# The rows are new, or came from a dump of another server: the event log goes on above what they brought along, and what
# they say of transactions means nothing here.
_MOVE_IN: Final = (
    "LOCK TABLE ingot.events, ingot.leases IN EXCLUSIVE MODE",
    """
    WITH old AS (DELETE FROM ingot.home RETURNING shift)
    INSERT INTO ingot.home (server, shift) SELECT system_identifier, greatest(
        (SELECT max(shift) FROM old),
        (SELECT max(position) FROM ingot.events) + 1 - pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
        0
    )
    FROM pg_control_system()
    """,
    "UPDATE ingot.leases SET changed_by = '3'",
)
_MADE_MEANWHILE: Final = (asyncpg.UniqueViolationError, asyncpg.DuplicateObjectError, asyncpg.DuplicateTableError)
_CHANGED_SHAPE: Final = (asyncpg.InvalidFunctionDefinitionError, asyncpg.InvalidTableDefinitionError)
LOCK_TRIES_MAX: Final = 10


def migrations() -> list[Migration]:
    """All steps this program knows, in order."""
    return read_migrations("ingot.engines.postgres.migrations")


async def migrate(owner_url: str) -> list[Migration]:
    """Bring a database to this program's schema, and return the steps that were missing.

    `owner_url` is of a role that may make roles and schemas. Safe to run from two places at once. Raises
    `StoreTooNew` for a database of a later version, and `StoreError` when it cannot be reached.
    """
    configure_logs()  # Tracebacks must not show the URL, which may hold a password.
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
    if not await _missing(connection) and await _is_current(connection):
        return []
    anew = False
    for _ in range(LOCK_TRIES_MAX):
        try:
            return await _apply_alone(connection, anew=anew)
        except _CHANGED_SHAPE:  # What answers in another shape cannot be replaced under those who are at work.
            anew = True
        except asyncpg.LockNotAvailableError:
            await asyncio.sleep(1.0)
    raise StoreBusy(
        "The migration cannot get at the tables; nothing was changed.",
        hint="End the transactions that hold them: look for old ones in pg_stat_activity.",
    )


async def _apply_alone(connection: asyncpg.Connection[asyncpg.Record], *, anew: bool) -> list[Migration]:
    """Do all that is missing in one transaction, one migration at a time, and nobody waits long for it."""
    async with connection.transaction():
        await connection.execute("SET LOCAL lock_timeout = '3s'")
        await connection.execute("LOCK TABLE ingot.migrations IN SHARE ROW EXCLUSIVE MODE")
        missing = await _missing(connection)
        for step in missing:
            await connection.execute(step.text)
            await connection.execute("INSERT INTO ingot.migrations VALUES ($1, $2)", step.number, step.name)
        if missing or not await _is_current(connection):
            for text in (_DROP_VIEWS, _DROP_FUNCTIONS) if anew else ():
                await connection.execute(text)
            await _set_shift(connection)
            views, *functions, grants = _definitions()
            for text in (views, *functions, _DROP_FUNCTIONS, grants, f"COMMENT ON SCHEMA ingot IS '{_digest()}'"):
                await connection.execute(text)
        if not await connection.fetchval("SELECT ingot.at_home()"):
            for text in _MOVE_IN:
                await connection.execute(text)
            await _set_shift(connection)
        return missing


async def _missing(connection: asyncpg.Connection[asyncpg.Record]) -> list[Migration]:
    known, newest = migrations(), await check(connection)
    if newest > known[-1].number:
        raise StoreTooNew(f"The database is at schema {newest}; this program knows up to {known[-1].number}.")
    return [step for step in known if step.number > newest]


async def _is_current(connection: asyncpg.Connection[asyncpg.Record]) -> bool:
    """Whether what was applied last is ours, on this server."""
    digest = await connection.fetchval(_DIGEST)
    return bool(digest == _digest() and await connection.fetchval("SELECT ingot.at_home()"))


async def _set_shift(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    shift = await connection.fetchval("SELECT coalesce(max(shift), 0) FROM ingot.home")
    await connection.execute(_SHIFT.format(shift))


def _digest() -> str:
    return hashlib.sha256("\0".join(_definitions()).encode()).hexdigest()


def _definitions() -> list[str]:
    """The SQL that is applied whole: the view, all functions, and who may use them."""
    package = resources.files("ingot.engines.postgres")
    functions = sorted(package.joinpath("functions").iterdir(), key=lambda file: file.name)
    texts = [file.read_text(encoding="utf-8") for file in functions if file.name.endswith(".sql")]
    before, after = (package.joinpath(name).read_text(encoding="utf-8") for name in ("views.sql", "grants.sql"))
    return [before, *(_BOUND.sub(_bound, text) for text in texts), after]


def _bound(name: re.Match[str]) -> str:
    """The number that a name such as `{jobs.checks.TAGS_MAX}` stands for, so that each is stated once."""
    return f"{getattr(import_module(f'ingot.{name[1]}'), name[2]):.0f}"
