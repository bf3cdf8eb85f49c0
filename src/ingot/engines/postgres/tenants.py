"""Tenants: a small table that changes rarely."""

from __future__ import annotations

import msgspec

from ingot.engines.postgres.connection import Record
from ingot.engines.postgres.context import Context
from ingot.engines.postgres.function_calls import CALL, json_text
from ingot.identity.model import Limits, Tenant, TenantNotFound
from ingot.identity.people import Role
from ingot.identity.ports import ChangeTenant, CreateTenant, GetTenant, ListTenants
from ingot.kernel.ids import is_id


async def create_tenant(context: Context, command: CreateTenant) -> Tenant:
    """Make a tenant."""
    tenant = command.tenant
    row = (tenant.id, tenant.slug, tenant.weight, tenant.time_zone, json_text(tenant.limits))
    await context.database.call(CALL.create_tenant, *row, json_text(command.act), json_text(tenant.groups))
    context.lane_cache.weights[tenant.id] = tenant.weight
    return tenant


async def change_tenant(context: Context, command: ChangeTenant) -> Tenant:
    """Change some of a tenant's values."""
    check_tenant_id(command.id)
    row = (command.id, command.slug, command.weight, command.time_zone, json_text(command.limits))
    await context.database.call(CALL.change_tenant, *row, json_text(command.act), json_text(command.groups))
    changed = await get_tenant(context, GetTenant(id_or_slug=command.id))
    if changed is None:  # It was removed at this moment.
        raise TenantNotFound(f"there is no tenant {command.id[:64]!r}")
    context.lane_cache.weights[changed.id] = changed.weight
    context.lane_cache.resume_lanes(changed.id)
    return changed


async def get_tenant(context: Context, command: GetTenant) -> Tenant | None:
    """The tenant with this id, or else with this slug."""
    name = command.id_or_slug
    rows = await context.database.call(CALL.find_tenants, name if is_id(name) else None, name)
    found = sorted(rows, key=lambda row: row["id"] != name)
    return _tenant_of(found[0]) if found else None


async def list_tenants(context: Context, command: ListTenants) -> list[Tenant]:
    """Tenants by slug, from behind one."""
    rows = await context.database.call(CALL.list_tenants, command.after, command.limit)
    return [_tenant_of(row) for row in rows]


async def check_tenant(context: Context, tenant: str) -> None:
    """Raise `TenantNotFound` for a tenant that is not there."""
    if tenant in context.lane_cache.known_tenants:
        return
    if not is_id(tenant) or not await context.database.call(CALL.find_tenants, tenant, None):
        raise TenantNotFound(f"there is no tenant {tenant[:64]!r}")
    context.lane_cache.known_tenants.add(tenant)


def check_tenant_id(tenant: str | None) -> None:
    """Raise `TenantNotFound` for a text that no tenant can have as its id."""
    if tenant is not None and not is_id(tenant):
        raise TenantNotFound(f"there is no tenant {tenant[:64]!r}")


def _tenant_of(row: Record) -> Tenant:
    return Tenant(
        id=row["id"],
        slug=row["slug"],
        weight=row["weight"],
        time_zone=row["time_zone"],
        limits=msgspec.json.decode(row["limits"], type=Limits),
        groups=msgspec.json.decode(row["groups"], type=dict[str, Role]),
    )
