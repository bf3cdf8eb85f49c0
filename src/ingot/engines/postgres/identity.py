"""Tenants: a small table that changes rarely."""

from __future__ import annotations

import msgspec

from ingot.engines.postgres.audit import act_text
from ingot.engines.postgres.connection import Database, Record
from ingot.engines.postgres.memory import Memory
from ingot.identity.model import Limits, Tenant, TenantNotFound
from ingot.identity.people import Role
from ingot.identity.ports import ChangeTenant, CreateTenant
from ingot.kernel.ids import is_id

FIND = "SELECT * FROM ingot.find_tenants($1, $2)"


async def create_tenant(db: Database, memory: Memory, command: CreateTenant) -> Tenant:
    """Make a tenant."""
    tenant = command.tenant
    row = (tenant.id, tenant.slug, tenant.weight, tenant.time_zone, _text(tenant.limits))
    act = act_text(command.act)
    await db.call("SELECT ingot.create_tenant($1, $2, $3, $4, $5, $6, $7)", *row, act, _text(tenant.groups))
    memory.weights[tenant.id] = tenant.weight
    return tenant


async def change_tenant(db: Database, memory: Memory, command: ChangeTenant) -> Tenant:
    """Change some of a tenant's values."""
    if not is_id(command.id):
        raise TenantNotFound
    limits = None if command.limits is None else _text(command.limits)
    groups = None if command.groups is None else _text(command.groups)
    row = (command.id, command.slug, command.weight, command.time_zone, limits)
    await db.call("SELECT ingot.change_tenant($1, $2, $3, $4, $5, $6, $7)", *row, act_text(command.act), groups)
    changed = await get_tenant(db, command.id)
    if changed is None:  # It was removed at this moment.
        raise TenantNotFound(f"there is no tenant {command.id[:64]!r}")
    memory.weights[changed.id] = changed.weight
    memory.free(changed.id)
    return changed


async def get_tenant(db: Database, id_or_slug: str) -> Tenant | None:
    """The tenant with this id, or else with this slug."""
    rows = await db.call(FIND, id_or_slug if is_id(id_or_slug) else None, id_or_slug)
    found = sorted(rows, key=lambda row: row["id"] != id_or_slug)
    return _tenant(found[0]) if found else None


async def list_tenants(db: Database, *, after: str, limit: int | None) -> list[Tenant]:
    """Tenants by slug, from behind one."""
    return [_tenant(row) for row in await db.call("SELECT * FROM ingot.list_tenants($1, $2)", after, limit)]


async def check_tenant(db: Database, memory: Memory, tenant: str) -> None:
    """Raise `TenantNotFound` for a tenant that is not there."""
    if tenant in memory.tenants:
        return
    if not is_id(tenant) or not await db.call(FIND, tenant, None):
        raise TenantNotFound(f"there is no tenant {tenant[:64]!r}")
    memory.tenants.add(tenant)


def _tenant(row: Record) -> Tenant:
    return Tenant(
        id=row["id"],
        slug=row["slug"],
        weight=row["weight"],
        time_zone=row["time_zone"],
        limits=msgspec.json.decode(row["limits"], type=Limits),
        groups=msgspec.json.decode(row["groups"], type=dict[str, Role]),
    )


def _text(value: Limits | dict[str, Role]) -> str:
    return msgspec.json.encode(value).decode()
