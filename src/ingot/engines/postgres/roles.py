"""Roles that talk to PostgreSQL themselves, each for one tenant: workers, and users' own applications."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import asyncpg

from ingot.engines.postgres.connection import UNREACHABLE_ERRORS, PlainConnection, invalid_url_error, translate_error
from ingot.engines.postgres.sql import SQL
from ingot.identity.model import TenantNotFound
from ingot.kernel.errors import InvalidInput, StoreMisconfigured
from ingot.kernel.ids import is_id
from ingot.kernel.logs import configure_logs

NO_SCHEMA_ERRORS: Final = (
    asyncpg.InvalidSchemaNameError,
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedObjectError,
    asyncpg.InvalidParameterValueError,  # Of a role that is to be ours, before there is one.
)
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")


async def grant_app_role(owner_url: str, role: str, tenant: str) -> None:
    """Let a role that is there enqueue jobs and publish events of this tenant, inside its own transactions.

    The tenant is named by its id or its slug. Raises `InvalidInput`, `TenantNotFound`, or `StoreError`.
    """
    async with _owner_transaction(owner_url) as connection:
        await _check_role(connection, role)
        await connection.execute(f"GRANT ingot_app TO {_quoted(role)}")
        if not await connection.fetchval("SELECT pg_has_role($1, 'ingot_app', 'USAGE')", role):
            raise InvalidInput(
                f"the role {role} does not inherit what it is granted", hint="Change that: ALTER ROLE … INHERIT."
            )
        await connection.execute("SET LOCAL ROLE ingot_owner")
        found = await _find_tenant(connection, tenant)
        if await connection.fetchval(SQL.let_in, role, found) != found:
            raise InvalidInput(f"the role {role} is in another tenant", hint="Let it out first, or use another role.")


async def revoke_app_role(owner_url: str, role: str) -> None:
    """Let a role enqueue and publish no more. Raises `InvalidInput` or `StoreError`.

    It stays a member of `ingot_app`, which belongs to the whole server: another database may have let it in.
    """
    async with _owner_transaction(owner_url) as connection:
        await _check_role(connection, role)
        await connection.execute("SET LOCAL ROLE ingot_owner")
        await connection.execute(SQL.let_out, role)


async def _find_tenant(connection: PlainConnection, named: str) -> str:
    """The id of a tenant, asked for as the owner of the tables. It is kept from going until the end."""
    found: str | None = await connection.fetchval(SQL.hold_tenant, named, is_id(named)) if "\x00" not in named else None
    if found is None:
        raise TenantNotFound(f"there is no tenant {named[:64]!r}")
    return found


def _quoted(role: str) -> str:
    return '"' + role.replace('"', '""') + '"'


async def _check_role(connection: PlainConnection, role: str) -> None:
    if role.startswith(("pg_", "ingot_")):
        raise InvalidInput(f"the role {role[:64]!r} cannot be used", hint="Use the role of your application.")
    if "\x00" in role or not await connection.fetchval("SELECT true FROM pg_roles WHERE rolname = $1", role):
        raise InvalidInput(f"there is no role {role[:64]!r}", hint="Make it first: CREATE ROLE … LOGIN.")


@asynccontextmanager
async def _owner_transaction(url: str) -> AsyncIterator[PlainConnection]:
    """A transaction as the role that may make roles."""
    configure_logs()  # Tracebacks must not show the URL, which may hold a password.
    try:
        connection = await asyncpg.connect(url)
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()
    except ValueError:
        raise invalid_url_error("The owner's URL") from None
    except NO_SCHEMA_ERRORS:
        raise StoreMisconfigured(
            "The database does not have our schema, or an older one.", hint="Apply it first: `ingot database migrate`."
        ) from None
    except (*UNREACHABLE_ERRORS, asyncpg.PostgresError) as error:
        raise translate_error(error, action="used") from error


async def make_worker_role(owner_url: str, role: str, tenant: str) -> str:
    """Make a role that logs in as a worker of this tenant, or give the one that is there a new password.

    The tenant is named by its id or its slug. The answer is the password. Raises `InvalidInput`, `TenantNotFound`, or
    `StoreError`.
    """
    if not _NAME.fullmatch(role) or role.startswith(("pg_", "ingot_")):
        raise InvalidInput(
            f"the role {role[:64]!r} cannot be used",
            hint="Use up to 63 lower-case letters, digits and _, not pg_ or ingot_ first.",
        )
    password = secrets.token_urlsafe(32)
    async with _owner_transaction(owner_url) as connection:
        await _create_or_update_role(connection, role, tenant, password)
    return password


async def _create_or_update_role(connection: PlainConnection, role: str, tenant: str, password: str) -> None:
    known = await connection.fetchrow(SQL.is_worker_role, role)
    if known is not None and not known[0]:
        raise InvalidInput(f"the role {role} is there already and is not one of ours", hint="Choose another name.")
    verb = "CREATE" if known is None else "ALTER"
    quoted = await connection.fetchval(
        "SELECT format($1, $2::text, $3::text)", f"{verb} ROLE %I LOGIN PASSWORD %L", role, password
    )
    await connection.execute(quoted)
    await connection.execute(f"ALTER ROLE \"{role}\" SET idle_in_transaction_session_timeout = '60s'")
    if known is None:
        await connection.execute(f'GRANT ingot_worker TO "{role}"')
    await connection.execute("SET LOCAL ROLE ingot_owner")
    if await connection.fetchval("SELECT true FROM ingot.worker_credentials WHERE id = $1", role):
        raise InvalidInput(f"there is a worker credential {role}", hint="Choose another name: workers go by it.")
    found = await _find_tenant(connection, tenant)
    served = await connection.fetchval("SELECT tenant::text FROM ingot.worker_roles WHERE role = $1", role)
    if served not in (None, found):
        raise InvalidInput(f"the role {role} serves another tenant", hint="Choose another name for this tenant's.")
    await connection.execute(SQL.insert_worker_role, role, found)
