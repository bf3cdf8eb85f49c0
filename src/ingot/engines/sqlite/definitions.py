"""Definitions and pauses: small tables that change rarely."""

from __future__ import annotations

from ingot.engines.sqlite.readers import Reader
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.identity.model import TenantNotFound
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


def put_definition(tx: Transaction, command: PutDefinition) -> Definition:
    """Make or replace a definition."""
    definition = command.definition
    if definition.tenant is not None and definition.tenant not in tx.memory.tenants:
        raise TenantNotFound
    old = tx.memory.definitions.get((definition.tenant, definition.type))
    tx.execute(SQL.put_definition, definition.tenant or "", definition.type, as_json(definition))
    if definition.type in tx.memory.limited_types:  # It may leave more room than the one before.
        concerned = tx.memory.tenants if definition.tenant is None else [definition.tenant]
        for tenant in tx.memory.lanes.get(definition.type, {}).keys() & concerned:
            tx.tell_room(tenant, definition.type)
    tx.memory.add_definition(definition)
    if definition != old:
        target = f"definition/{definition.type}"
        tx.audit(command.act, "definition.put", target, tenant=definition.tenant, before=old, after=definition)
    return definition


def ensure_definition(tx: Transaction, command: EnsureDefinition) -> Definition:
    """Have a definition for all, of a version at least."""
    known = tx.memory.definitions.get((None, command.definition.type))
    wanted = ensured(known, command.definition)
    return wanted if wanted == known else put_definition(tx, PutDefinition(definition=wanted, act=command.act))


def pause(tx: Transaction, command: PauseType) -> Pause:
    """Hand out no more of a tenant's jobs of a type."""
    if command.tenant not in tx.memory.tenants:
        raise TenantNotFound(f"there is no tenant {command.tenant[:64]!r}")
    known = tx.memory.pauses.get((command.tenant, command.type))
    if known is not None:
        return known
    tx.execute(SQL.insert_pauses, tx.memory.tenants[command.tenant], command.type, tx.now, command.by)
    made = Pause(type=command.type, since=to_datetime(tx.now), by=command.by)
    tx.memory.pauses[command.tenant, command.type] = made
    tx.audit(command.act, "type.paused", f"type/{command.type}", tenant=command.tenant, after=made)
    return made


def resume(tx: Transaction, command: ResumeType) -> None:
    """Hand out a tenant's jobs of a type again."""
    if command.tenant not in tx.memory.tenants:
        raise TenantNotFound(f"there is no tenant {command.tenant[:64]!r}")
    known = tx.memory.pauses.pop((command.tenant, command.type), None)
    if known is not None:
        tx.execute(SQL.delete_pause, tx.memory.tenants[command.tenant], command.type)
        tx.tell_room(command.tenant, command.type)
        tx.audit(command.act, "type.resumed", f"type/{command.type}", tenant=command.tenant, before=known)


def get_definition(reader: Reader, command: GetDefinition) -> Definition:
    """Find the definition of a type that holds for a tenant."""
    reader.check_tenant(command.tenant)
    known = reader.read(Definition, SQL.definitions_of_type, command.type, command.tenant or "")
    return known or Definition(type=command.type)


def list_definitions(reader: Reader, command: ListDefinitions) -> list[Definition]:
    """Read the definitions that a tenant can see."""
    reader.check_tenant(command.tenant)
    return reader.read(list[Definition], SQL.definitions_of_tenant, command.tenant or "") or []


def list_pauses(reader: Reader, command: ListPauses) -> list[Pause]:
    """Read which types of a tenant are paused."""
    reader.check_tenant(command.tenant)
    rows = reader.read(list[tuple[str, int, str | None]], SQL.pauses_of_tenant, command.tenant) or ()
    return [Pause(type=type, since=to_datetime(since), by=by) for type, since, by in rows]
