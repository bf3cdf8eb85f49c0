"""Definitions: a small table that changes rarely."""

from __future__ import annotations

from typing import Any

import msgspec

from ingot.engines.postgres.audit import act_text
from ingot.engines.postgres.calls import CALL
from ingot.engines.postgres.connection import CONFLICTS_MAX, Database
from ingot.engines.postgres.context import Context
from ingot.engines.postgres.identity import check_tenant, check_tenant_id
from ingot.engines.postgres.memory import NIL
from ingot.engines.postgres.rows import pause_of
from ingot.engines.postgres.sql import SQL
from ingot.jobs.ensuring import ensured
from ingot.jobs.model import Definition, Pause
from ingot.jobs.ports import (
    EnsureDefinition,
    GetDefinition,
    ListDefinitions,
    ListPauses,
    PauseType,
    PutDefinition,
    ResumeType,
)
from ingot.kernel.clock import to_datetime
from ingot.kernel.errors import StoreBusy
from ingot.kernel.ids import is_id


async def put_definition(context: Context, command: PutDefinition) -> Definition:
    """Make or replace a definition."""
    definition = command.definition
    check_tenant_id(definition.tenant)
    await context.database.call(
        CALL.put_definition,
        definition.tenant or NIL,
        *_columns(definition),
        act_text(command.act),
    )
    context.memory.free_all()
    return definition


async def ensure_definition(context: Context, command: EnsureDefinition) -> Definition:
    """Have a definition for all, of a version at least."""
    for _ in range(CONFLICTS_MAX):
        rows = await context.database.call(CALL.find_definitions, NIL, command.definition.type)
        text = rows[0]["definition"] if rows else None
        known = None if text is None else msgspec.json.decode(text, type=Definition)
        wanted = ensured(known, command.definition)
        if wanted == known:
            return wanted
        ((swapped,),) = await context.database.call(
            CALL.swap_definition,
            text,
            *_columns(wanted),
            act_text(command.act),
        )
        if swapped:
            context.memory.free_all()
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


async def pause(context: Context, command: PauseType) -> Pause:
    """Hand out no more of a tenant's jobs of this type."""
    check_tenant_id(command.tenant)
    given = (command.tenant, command.type, command.by, act_text(command.act))
    (row,) = await context.database.call(CALL.pause, *given)
    return Pause(type=command.type, since=to_datetime(row["since"]), by=row["by"])


async def resume(context: Context, command: ResumeType) -> None:
    """Hand out a tenant's jobs of this type again."""
    check_tenant_id(command.tenant)
    await context.database.call(CALL.resume, command.tenant, command.type, act_text(command.act))
    context.memory.free(command.tenant)


async def list_pauses(context: Context, command: ListPauses) -> list[Pause]:
    """The types of a tenant that are paused, by type."""
    await check_tenant(context, command.tenant)
    rows = await context.database.read(command.tenant, SQL.pauses_of_tenant, command.tenant)
    return [pause_of(row) for row in rows]


async def get_definition(context: Context, command: GetDefinition) -> Definition:
    """The definition that holds: the tenant's own, or the one for all, or the defaults."""
    if command.tenant is not None:
        await check_tenant(context, command.tenant)
    return await find_definition(context.database, command.tenant, command.type)


async def list_definitions(context: Context, command: ListDefinitions) -> list[Definition]:
    """The stored definitions a tenant can see, by type."""
    if command.tenant is not None:
        await check_tenant(context, command.tenant)
    return await _find(context.database, command.tenant, None)


async def find_definition(db: Database, tenant: str | None, type: str) -> Definition:
    """The definition that holds for a tenant that may not be there."""
    found = await _find(db, tenant, type)
    return found[-1] if found else Definition(type=type)


async def _find(db: Database, tenant: str | None, type: str | None) -> list[Definition]:
    owner = tenant if tenant is not None and is_id(tenant) else NIL
    return [
        msgspec.json.decode(row["definition"], type=Definition)
        for row in await db.call(CALL.find_definitions, owner, type)
    ]
