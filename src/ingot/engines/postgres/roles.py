"""Roles of workers that talk to PostgreSQL themselves: each may claim and settle jobs of one tenant, and no more."""

from __future__ import annotations

import re
import secrets
from typing import Final

import asyncpg

from ingot.engines.postgres.connection import AWAY, explain, unreadable
from ingot.identity.model import TenantNotFound
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import is_id
from ingot.kernel.logs import configure_logs

OURS: Final = """
SELECT EXISTS (
    SELECT FROM pg_auth_members AS m WHERE m.member = r.oid AND m.roleid = 'ingot_worker'::regrole
) AND NOT r.rolsuper FROM pg_roles AS r WHERE r.rolname = $1
"""
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")


async def make_worker_role(owner_url: str, role: str, tenant: str) -> str:
    """Make a role that logs in as a worker of this tenant, or give the one that is there a new password.

    The answer is the password. Raises `InvalidInput`, `TenantNotFound`, or `StoreError`.
    """
    if not _NAME.fullmatch(role) or role.startswith(("pg_", "ingot_")):
        raise InvalidInput(
            f"the role {role[:64]!r} cannot be used",
            hint="Use up to 63 lower-case letters, digits and _, not pg_ or ingot_ first.",
        )
    if not is_id(tenant):
        raise TenantNotFound(f"there is no tenant {tenant[:64]!r}")
    configure_logs()  # Tracebacks must not show the URL, which may hold a password.
    password = secrets.token_urlsafe(32)
    try:
        connection = await asyncpg.connect(owner_url)
        try:
            async with connection.transaction():
                await _make(connection, role, tenant, password)
        finally:
            await connection.close()
    except ValueError:
        raise unreadable("The owner's URL") from None
    except asyncpg.ForeignKeyViolationError:
        raise TenantNotFound(f"there is no tenant {tenant}") from None
    except (*AWAY, asyncpg.PostgresError) as error:
        raise explain(error, doing="used") from error
    return password


async def _make(connection: asyncpg.Connection[asyncpg.Record], role: str, tenant: str, password: str) -> None:
    known = await connection.fetchrow(OURS, role)
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
    served = await connection.fetchval("SELECT tenant::text FROM ingot.worker_roles WHERE role = $1", role)
    if served not in (None, tenant):
        raise InvalidInput(f"the role {role} serves another tenant", hint="Choose another name for this tenant's.")
    await connection.execute(
        "INSERT INTO ingot.worker_roles (role, tenant) VALUES ($1, $2) ON CONFLICT (role) DO NOTHING",
        role,
        tenant,
    )
