"""Definitions: a small table that changes rarely."""

from __future__ import annotations

import msgspec

from ingot.engines.postgres.connection import Database
from ingot.engines.postgres.memory import NIL
from ingot.identity.model import TenantNotFound
from ingot.jobs.model import Definition
from ingot.jobs.ports import PutDefinition
from ingot.kernel.ids import is_id

FIND = "SELECT * FROM ingot.find_definitions($1, $2)"


async def put_definition(db: Database, command: PutDefinition) -> Definition:
    """Make or replace a definition."""
    definition = command.definition
    if definition.tenant is not None and not is_id(definition.tenant):
        raise TenantNotFound
    await db.call(
        "SELECT ingot.put_definition($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        definition.tenant or NIL,
        definition.type,
        msgspec.json.encode(definition).decode(),
        definition.priority,
        definition.max_attempts,
        definition.crash_cap,
        float(definition.timeout_seconds),
        float(definition.backoff.first_seconds),
        float(definition.backoff.factor),
        float(definition.backoff.max_seconds),
    )
    return definition


async def get_definition(db: Database, tenant: str | None, type: str) -> Definition:
    """The definition that holds: the tenant's own, or the one for all, or the defaults."""
    found = await _find(db, tenant, type)
    return found[-1] if found else Definition(type=type)


async def list_definitions(db: Database, tenant: str | None) -> list[Definition]:
    """The stored definitions a tenant can see, by type."""
    return await _find(db, tenant, None)


async def _find(db: Database, tenant: str | None, type: str | None) -> list[Definition]:
    owner = tenant if tenant is not None and is_id(tenant) else NIL
    return [msgspec.json.decode(row["definition"], type=Definition) for row in await db.call(FIND, owner, type)]
