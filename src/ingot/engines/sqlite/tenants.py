"""Tenants, in a small table that changes rarely."""

from __future__ import annotations

from typing import Final

import apsw

from ingot.engines.sqlite.readers import Reader
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.identity.model import Tenant, TenantExists, TenantNotFound
from ingot.identity.ports import ChangeTenant, CreateTenant, GetTenant, ListTenants

ALL_ROWS: Final = -1  # For a LIMIT.


def create_tenant(tx: Transaction, command: CreateTenant) -> Tenant:
    """Create a tenant."""
    tenant = command.tenant
    number = tx.writer_state.last_tenant_number + 1
    row = (number, tenant.id, tenant.slug, tenant.weight, tenant.time_zone, as_json(tenant.limits))
    try:
        tx.execute(SQL.insert_tenants, *row)
    except apsw.ConstraintError:
        raise TenantExists(f"a tenant with the slug {tenant.slug!r} already exists") from None
    tx.execute(SQL.insert_tenant_groups, number, as_json(tenant.groups))
    tx.writer_state.add_tenant(tenant.id, number, tenant.weight, tenant.limits)
    tx.audit(command.act, "tenant.created", f"tenant/{tenant.slug}", tenant=tenant.id, after=tenant)
    return tenant


def change_tenant(tx: Transaction, command: ChangeTenant) -> Tenant:
    """Change some of a tenant's values."""
    if command.id not in tx.writer_state.tenants:
        raise TenantNotFound
    old = tx.read(Tenant, SQL.tenant_by_name, command.id)
    tenant = Tenant(
        id=old.id,
        slug=old.slug if command.slug is None else command.slug,
        weight=old.weight if command.weight is None else command.weight,
        time_zone=old.time_zone if command.time_zone is None else command.time_zone,
        limits=old.limits if command.limits is None else command.limits,
        groups=old.groups if command.groups is None else command.groups,
    )
    row = (tenant.slug, tenant.weight, tenant.time_zone, as_json(tenant.limits), tenant.id)
    try:
        tx.execute(SQL.update_tenant, *row)
    except apsw.ConstraintError:
        raise TenantExists(f"a tenant with the slug {tenant.slug!r} already exists") from None
    if tenant.groups != old.groups:
        number = tx.writer_state.tenants[tenant.id]
        tx.execute(SQL.delete_tenant_groups, number)
        tx.execute(SQL.insert_tenant_groups, number, as_json(tenant.groups))
    tx.writer_state.weights[tenant.id] = tenant.weight
    tx.writer_state.set_limits(tenant.id, tenant.limits)
    if tenant != old:
        tx.audit(command.act, "tenant.changed", f"tenant/{old.slug}", tenant=tenant.id, before=old, after=tenant)
    if tenant.limits.max_running_jobs != old.limits.max_running_jobs:
        tx.announce_capacity(tenant.id)
    return tenant


def get_tenant(reader: Reader, command: GetTenant) -> Tenant | None:
    """Find a tenant by id or slug."""
    return reader.find(Tenant, SQL.tenant_by_name, command.id_or_slug)


def list_tenants(reader: Reader, command: ListTenants) -> list[Tenant]:
    """Read a page of tenants, or all of them."""
    limit = ALL_ROWS if command.limit is None else command.limit
    return reader.read(list[Tenant], SQL.page_of_tenants, command.after, limit)
