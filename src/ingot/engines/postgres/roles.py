"""Database roles of workers and of users' applications, which connect to PostgreSQL directly, each for one tenant."""

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
    asyncpg.InvalidParameterValueError,  # SET ROLE raises it for a role that does not exist.
)
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")


async def grant_app_role(owner_url: str, role: str, tenant: str) -> None:
    """Allow an existing role to enqueue jobs and publish events of this tenant in the role's own transactions.

    `tenant` is an ID or a slug. Raises `InvalidInput`, `TenantNotFound` or `StoreError`.
    """
    async with _owner_transaction(owner_url) as connection:
        await _check_role(connection, role)
        await connection.execute(f"GRANT ingot_app TO {_quoted(role)}")
        if not await connection.fetchval("SELECT pg_has_role($1, 'ingot_app', 'USAGE')", role):
            raise InvalidInput(
                f"the role {role} does not inherit the privileges of its groups",
                hint="Change it with ALTER ROLE … INHERIT.",
            )
        await connection.execute("SET LOCAL ROLE ingot_owner")
        tenant_id = await _lock_tenant(connection, tenant)
        if await connection.fetchval(SQL.insert_app_role, role, tenant_id) != tenant_id:
            raise InvalidInput(
                f"the role {role} belongs to another tenant", hint="Revoke its access first, or use another role."
            )


async def revoke_app_role(owner_url: str, role: str) -> None:
    """Revoke the access that `grant_app_role` granted. Raises `InvalidInput` or `StoreError`.

    The role stays a member of `ingot_app`: membership applies to all databases of the server, and another one may have
    granted access to it.
    """
    async with _owner_transaction(owner_url) as connection:
        await _check_role(connection, role)
        await connection.execute("SET LOCAL ROLE ingot_owner")
        await connection.execute(SQL.delete_app_role, role)


async def _lock_tenant(connection: PlainConnection, name: str) -> str:
    """Return the ID of the tenant with this ID or slug. It cannot be removed until the transaction ends."""
    tenant_id: str | None = None
    if "\x00" not in name:
        tenant_id = await connection.fetchval(SQL.lock_tenant, name, is_id(name))
    if tenant_id is None:
        raise TenantNotFound(f"there is no tenant {name[:64]!r}")
    return tenant_id


def _quoted(role: str) -> str:
    return '"' + role.replace('"', '""') + '"'


async def _check_role(connection: PlainConnection, role: str) -> None:
    if role.startswith(("pg_", "ingot_")):
        raise InvalidInput(f"the role {role[:64]!r} cannot be used", hint="Use the role of your application.")
    if "\x00" in role or not await connection.fetchval("SELECT true FROM pg_roles WHERE rolname = $1", role):
        raise InvalidInput(f"the role {role[:64]!r} does not exist", hint="Create it first with CREATE ROLE … LOGIN.")


@asynccontextmanager
async def _owner_transaction(url: str) -> AsyncIterator[PlainConnection]:
    """Open a transaction as the role that is allowed to create roles."""
    configure_logs()  # Tracebacks must not show the URL, which may contain a password.
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
            "The schema of Ingot is missing from this database, or is too old.",
            hint="Apply it first with `ingot database migrate`.",
        ) from None
    except (*UNREACHABLE_ERRORS, asyncpg.PostgresError) as error:
        raise translate_error(error, action="used") from error


async def make_worker_role(owner_url: str, role: str, tenant: str) -> str:
    """Create a role with which workers of this tenant log in, or give an existing one a new password.

    `tenant` is an ID or a slug. Returns the password. Raises `InvalidInput`, `TenantNotFound` or `StoreError`.
    """
    if not _NAME.fullmatch(role) or role.startswith(("pg_", "ingot_")):
        raise InvalidInput(
            f"the role {role[:64]!r} cannot be used",
            hint="Use up to 63 lower-case letters, digits and _. It must not start with pg_ or ingot_.",
        )
    password = secrets.token_urlsafe(32)
    async with _owner_transaction(owner_url) as connection:
        await _create_or_update_role(connection, role, tenant, password)
    return password


async def _create_or_update_role(connection: PlainConnection, role: str, tenant: str, password: str) -> None:
    is_worker_role: bool | None = await connection.fetchval(SQL.is_worker_role, role)
    if is_worker_role is False:
        raise InvalidInput(f"the role {role} exists and is not a worker role", hint="Choose another name.")
    verb = "CREATE" if is_worker_role is None else "ALTER"
    statement = await connection.fetchval(
        "SELECT format($1, $2::text, $3::text)", f"{verb} ROLE %I LOGIN PASSWORD %L", role, password
    )
    await connection.execute(statement)
    await connection.execute(f"ALTER ROLE \"{role}\" SET idle_in_transaction_session_timeout = '60s'")
    if is_worker_role is None:
        await connection.execute(f'GRANT ingot_worker TO "{role}"')
    # A member of a role may end its sessions, also where the owner's URL may not grant pg_signal_backend.
    await connection.execute(f'GRANT "{role}" TO ingot_owner')
    await connection.execute("SET LOCAL ROLE ingot_owner")
    if await connection.fetchval("SELECT true FROM ingot.worker_credentials WHERE id = $1", role):
        raise InvalidInput(
            f"a worker credential has the name {role}",
            hint="Choose another name. The IDs of its workers begin with this one.",
        )
    tenant_id = await _lock_tenant(connection, tenant)
    role_tenant = await connection.fetchval("SELECT tenant::text FROM ingot.worker_roles WHERE role = $1", role)
    if role_tenant not in (None, tenant_id):
        raise InvalidInput(f"the role {role} belongs to another tenant", hint="Choose another name.")
    await connection.execute(SQL.insert_worker_role, role, tenant_id)
