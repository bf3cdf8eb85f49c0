"""Definitions: a small table that changes rarely."""

from __future__ import annotations

from typing import Any

import msgspec

from ingot.engines.postgres.audit import act_text
from ingot.engines.postgres.connection import CONFLICTS_MAX, Database
from ingot.engines.postgres.memory import NIL, Memory
from ingot.identity.model import TenantNotFound
from ingot.jobs.ensuring import ensured
from ingot.jobs.model import Definition, Pause
from ingot.jobs.ports import EnsureDefinition, PauseType, PutDefinition, ResumeType
from ingot.kernel.clock import to_datetime
from ingot.kernel.errors import StoreBusy
from ingot.kernel.ids import is_id

FIND = "SELECT * FROM ingot.find_definitions($1, $2)"


async def put_definition(db: Database, memory: Memory, command: PutDefinition) -> Definition:
    """Make or replace a definition."""
    definition = command.definition
    if definition.tenant is not None and not is_id(definition.tenant):
        raise TenantNotFound
    await db.call(
        "SELECT ingot.put_definition($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        definition.tenant or NIL,
        *_columns(definition),
        act_text(command.act),
    )
    memory.free_all()
    return definition


async def ensure_definition(db: Database, memory: Memory, command: EnsureDefinition) -> Definition:
    """Have a definition for all, of a version at least."""
    for _ in range(CONFLICTS_MAX):
        rows = await db.call(FIND, NIL, command.definition.type)
        text = rows[0]["definition"] if rows else None
        known = None if text is None else msgspec.json.decode(text, type=Definition)
        wanted = ensured(known, command.definition)
        if wanted == known:
            return wanted
        ((swapped,),) = await db.call(
            "SELECT ingot.swap_definition($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
            text,
            *_columns(wanted),
            act_text(command.act),
        )
        if swapped:
            memory.free_all()
            return wanted
    raise StoreBusy


def _columns(definition: Definition) -> list[Any]:
    """A definition as the functions take it."""
    return [
        definition.type,
        msgspec.json.encode(definition).decode(),
        definition.priority,
        definition.max_attempts,
        definition.crash_cap,
        float(definition.timeout_seconds),
        float(definition.backoff.first_seconds),
        float(definition.backoff.factor),
        float(definition.backoff.max_seconds),
    ]


async def pause(db: Database, command: PauseType) -> Pause:
    """Hand out no more of a tenant's jobs of this type."""
    _check(command.tenant)
    given = (command.tenant, command.type, command.by, act_text(command.act))
    (row,) = await db.call("SELECT * FROM ingot.pause($1, $2, $3, $4)", *given)
    return Pause(type=command.type, since=to_datetime(row["since"]), by=row["by"])


async def resume(db: Database, memory: Memory, command: ResumeType) -> None:
    """Hand out a tenant's jobs of this type again."""
    _check(command.tenant)
    await db.call("SELECT ingot.resume($1, $2, $3)", command.tenant, command.type, act_text(command.act))
    memory.free(command.tenant)


def _check(tenant: str) -> None:
    if not is_id(tenant):
        raise TenantNotFound(f"there is no tenant {tenant[:64]!r}")


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
