"""Commands for tenants."""

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
    """See `CreateTenant`."""
    tenant = command.tenant
    await context.database.call(
        CALL.create_tenant,
        tenant.id,
        tenant.slug,
        tenant.weight,
        tenant.time_zone,
        json_text(tenant.limits),
        json_text(command.act),
        json_text(tenant.groups),
    )
    context.lane_cache.weights[tenant.id] = tenant.weight
    return tenant


async def change_tenant(context: Context, command: ChangeTenant) -> Tenant:
    """See `ChangeTenant`."""
    check_tenant_id(command.id)
    await context.database.call(
        CALL.change_tenant,
        command.id,
        command.slug,
        command.weight,
        command.time_zone,
        json_text(command.limits),
        json_text(command.act),
        json_text(command.groups),
    )
    tenant = await get_tenant(context, GetTenant(id_or_slug=command.id))
    if tenant is None:  # It was removed in the meantime.
        raise TenantNotFound(f"there is no tenant {command.id[:64]!r}")
    context.lane_cache.weights[tenant.id] = tenant.weight
    context.lane_cache.resume_lanes(tenant.id)
    return tenant


async def get_tenant(context: Context, command: GetTenant) -> Tenant | None:
    """See `GetTenant`. A tenant with this ID takes precedence over one with this slug."""
    name = command.id_or_slug
    rows = await context.database.call(CALL.find_tenants, name if is_id(name) else None, name)
    rows_by_id_first = sorted(rows, key=lambda row: row["id"] != name)
    return _tenant_of(rows_by_id_first[0]) if rows else None


async def list_tenants(context: Context, command: ListTenants) -> list[Tenant]:
    """See `ListTenants`."""
    rows = await context.database.call(CALL.list_tenants, command.after, command.limit)
    return [_tenant_of(row) for row in rows]


async def check_tenant(context: Context, tenant: str) -> None:
    """Raise `TenantNotFound` if the tenant does not exist."""
    if tenant in context.lane_cache.known_tenants:
        return
    if not is_id(tenant) or not await context.database.call(CALL.find_tenants, tenant, None):
        raise TenantNotFound(f"there is no tenant {tenant[:64]!r}")
    context.lane_cache.known_tenants.add(tenant)


def check_tenant_id(tenant: str | None) -> None:
    """Raise `TenantNotFound` if the text cannot be the ID of a tenant."""
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
